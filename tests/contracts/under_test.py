"""Which parts a contract is run on: all that are registered, or the one that `assay check` names."""

from __future__ import annotations

import os

from assay.core import registry
from assay.core.registry import Card

VARIABLE = "ASSAY_CHECK"  # seam=./mine.py:MyPart


def parts(seam: str) -> list[Card]:
    """The cards of a seam's parts under test."""
    seam_wanted, _, name = os.environ.get(VARIABLE, "").partition("=")
    if not seam_wanted:
        return registry.cards(seam)
    return [registry.find(name, seam)] if seam == seam_wanted else []


def one_alone() -> bool:
    """Whether a single part is under test, so that the project's own need not be run beside it."""
    return VARIABLE in os.environ


def registered(name: str) -> bool:
    """Whether a part is the project's own. Others may refuse what a law lets them refuse without being on a list of names."""
    return ".py" not in name
