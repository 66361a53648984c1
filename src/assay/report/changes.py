"""What differs between two runs, as plain data, on paper and in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from assay.report import format as say
from assay.report.files import write_atomically
from assay.report.page import colours, file, template
from assay.report.summary import Difference

COLOURS = {"better": "green", "worse": "red", "not distinguishable": "dim", "too few examples": "yellow"}


@dataclass(frozen=True)
class Change:
    """One policy at one budget on one task in both runs, over the examples they share. Positive differences: this run is better.

    `measure`: "share" of right answers, or "nll" in nats a token. `flips`: answers that became right, and wrong.
    """

    task: str
    policy: str
    budget: str
    measure: str
    here: float
    there: float
    difference: Difference
    bytes_here: float
    bytes_there: float
    rate_here: float | None
    rate_there: float | None
    flips: tuple[int, int]

    @property
    def name(self) -> str:
        return self.policy if self.policy == "full" else f"{self.policy}@{self.budget}"


@dataclass(frozen=True)
class Flip:
    """One answer that is right in one of the runs only."""

    task: str
    name: str
    policy: str
    example: int
    wanted: str
    here: str
    there: str
    better: bool


@dataclass(frozen=True)
class Changes:
    """This run (`here`) against another (`there`). `settings`: what was asked for otherwise, as (name, here, there)."""

    here: str
    there: str
    settings: tuple[tuple[str, str, str], ...]
    paired: int  # cells that both have
    equal: int  # of them, cells with the same score and log-probability
    only_here: int
    only_there: int
    other_prompts: int  # pairs whose text is not the same
    rows: tuple[Change, ...]
    flips: tuple[Flip, ...]
    policies: tuple[str, ...] = ()

    def says(self) -> list[str]:
        """The sentences at its head."""
        lines = [f"{self.paired} cells are in both runs; {self.equal} of them give the same score and log-probability."]
        alone = [
            f"{n} only in {where}" for n, where in ((self.only_here, self.here), (self.only_there, self.there)) if n
        ]
        if alone:
            lines.append(f"{' and '.join(alone)}: not compared.")
        if self.other_prompts:
            lines.append(
                f"{self.other_prompts} pairs have other texts (another tokenizer or task): paired by the example's number."
            )
        for verdict in ("worse", "better"):
            named = [f"{r.name} on {r.task}" for r in self.rows if r.difference.verdict == verdict]
            if named:
                more = f" and {len(named) - 8} more" if len(named) > 8 else ""
                lines.append(f"{verdict.capitalize()} here: {', '.join(named[:8])}{more}.")
        if not any(r.difference.verdict in ("worse", "better") for r in self.rows):
            lines.append("No policy is distinguishably better or worse than in the other run.")
        return lines


def write_changes(changes: Changes, path: Path) -> None:
    """One self-contained page. Raises AssayError where it cannot be written."""
    css = file("page.css") + colours(changes.policies)
    write_atomically(path, template("changes.html.j2").render(changes=changes, css=css))


def print_changes(changes: Changes, console: Console | None = None) -> None:
    console = console or Console()
    console.print(f"[bold]{escape(changes.here)}[/] against [bold]{escape(changes.there)}[/]", soft_wrap=True)
    for name, here, there in changes.settings:
        console.print(f"  {escape(name)}: {escape(here)} here, {escape(there)} there", soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for name in ("task", "policy@budget", "there", "here", "here − there", "flips", "bytes"):
        table.add_column(name, justify="left" if name in ("task", "policy@budget") else "right", no_wrap=True)
    for row in changes.rows:
        change = Text(say.difference_text(row.difference), style=COLOURS[row.difference.verdict])
        flips = f"+{row.flips[0]} −{row.flips[1]}" if any(row.flips) else ""
        size = (
            f"{row.bytes_here / row.bytes_there - 1:+.1%}"
            if row.bytes_there and row.bytes_here != row.bytes_there
            else "="
        )
        table.add_row(row.task, row.name, say.number(row.there), say.number(row.here), change, flips, size)
    console.print(table)
    for line in changes.says():
        console.print("• " + escape(line), soft_wrap=True)
