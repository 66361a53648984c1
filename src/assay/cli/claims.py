"""`assay claims` lists the published claims with how each ended; `assay claim D21` runs one."""

import sys
from pathlib import Path

import typer

from assay.cli.tables import markdown, show
from assay.core import registry
from assay.core.errors import AssayError
from assay.core.registry import Card

_COLUMNS = ["row", "part", "verdict", "age", "claim"]


def claims(
    as_markdown: bool = typer.Option(False, "--markdown", help="Print the table of rows for the documentation."),
    results: Path = typer.Option(None, help="Folder of records; by default the repository's atlas/results."),
) -> None:
    """List the claims: row, part, how the last recorded run ended, and its age."""
    from assay.claims import records

    found = [(card, records.read(card, results)) for card in registry.cards("claim")]
    if as_markdown:
        rows = [[c.row, _object(c), c.says, c.name, records.verdict(record)] for c, record in found]
        print(_PREFACE + markdown(["row", "name", "claim, in our words", "part", "verdict"], sorted(rows)))
        return
    rows = [[c.row, c.name, records.verdict(record), records.age(record), c.says] for c, record in found]
    show(_COLUMNS, sorted(rows))


def claim(
    name: str = typer.Argument(help="A row (D21), a part (random_attention), or ./mine.py:my_claim."),
    results: Path = typer.Option(None, help="Folder for the record; by default the repository's atlas/results."),
) -> None:
    """Run a claim and write its record. Exit code 1 if an exact statement fails."""
    from assay.claims import run as runs

    chosen = runs.load(runs.card_of(name))
    print(f"{chosen.row} {chosen.part}: {chosen.says}\nabout {chosen.minutes:g} min on two cores", file=sys.stderr)
    record, path, notes = runs.run(chosen, results)
    show(["kind", "verdict", "value", "wanted", "statement"], list(_lines(record)))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{path}  ({record['seconds']:g} s)")
    if runs.failed(record):
        print("assay: an exact statement fails, which is a bug", file=sys.stderr)
        raise typer.Exit(1)


def _object(card: Card) -> str:
    """What the part of a claim is called in code; a claim without a part keeps its own name."""
    try:
        return registry.find(card.name).object
    except AssayError:
        return card.name


def _lines(record: dict):
    for entry in record["exact"]:
        verdict = "holds" if entry["holds"] else "FAILS"
        yield ["exact", verdict, _short(entry["value"]), str(entry["bound"]), entry["says"]]
    for kind in ("control", "expect"):
        for entry in record[kind]:
            yield [kind, entry["verdict"], _estimate(entry), entry["wanted"], entry["says"]]
    for entry in record["report"]:
        yield ["report", "-", _short(entry["value"]), "-", entry["says"]]


def _estimate(entry: dict) -> str:
    if entry["interval"] is None:
        return _short(entry["value"])
    low, high = entry["interval"]
    return f"{entry['value']:.3g} [{low:.3g}, {high:.3g}]"


def _short(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


_PREFACE = """# Rows

Every row is one published mechanism. The verdict is how its claim ended when it was last run here (`assay claim ROW`;
records in `atlas/results/`): *holds*, *differs*, *inconclusive*, or *underpowered* where no positive control passed.
This page is made by `assay claims --markdown`.

"""
