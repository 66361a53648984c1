"""Find the claim of a part or row, run it, and make its record."""

import time
from pathlib import Path
from typing import Any

from assay.claims import records
from assay.claims.claim import Claim
from assay.claims.evidence import Evidence
from assay.core import registry
from assay.core.errors import AssayError
from assay.core.registry import Card


def card_of(name: str) -> Card:
    """The card of a claim by row (`D21`) or by its part's name."""
    by_row = [card for card in registry.cards("claim") if card.row.lower() == name.lower()]
    return by_row[0] if by_row else registry.find(name, "claim")


def load(card: Card) -> Claim:
    found = registry.load(card)
    if not isinstance(found, Claim):
        raise AssayError(f"{card.path}: {card.object} is no claim; decorate it with @claim")
    return found


def run(claim: Claim, where: Path | None = None) -> tuple[dict[str, Any], Path, list[str]]:
    """Run a claim and write its record. Returns the record, its path, and what a reader should know about it.

    A failed exact statement is in the record like any other: `failed(record)` tells. An exception writes nothing.
    """
    evidence = Evidence(claim.seeds)
    origin = records.provenance(claim.file)  # before the run, which may take long enough for the tree to change
    start = time.perf_counter()
    claim.experiment(evidence)
    seconds = round(time.perf_counter() - start, 1)
    record = {"row": claim.row, "part": claim.part, **evidence.findings(), "seconds": seconds, **origin}
    path, notes = records.write(record, where)
    return record, path, notes


def failed(record: dict[str, Any]) -> bool:
    """Whether an exact statement fails, which is a bug and exit code 1."""
    return any(not entry["holds"] for entry in record["exact"])
