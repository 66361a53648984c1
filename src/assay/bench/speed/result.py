"""What a speed run found: ratios with both sides' numbers, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Ratio:
    """One quantity on two sides. `ratio` is how many times faster `ours` is; `wanted` is the goal it was built for, if any."""

    what: str
    storage: str
    ours: float  # tokens per second
    theirs: float | None
    ratio: float | None
    wanted: float | None = None
    peer: str = "transformers"
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)  # median and quartiles of each side's samples

    @property
    def reached(self) -> bool | None:
        return None if self.wanted is None or self.ratio is None else self.ratio >= self.wanted


@dataclass(frozen=True)
class Speed:
    """A run: where, how, the ratios, each storage's share of the read bandwidth, loading, and what could not be measured."""

    model: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    ratios: list[Ratio]
    bandwidth: list[dict[str, Any]]
    loading: dict[str, float | None]
    agreement: dict[str, float]
    notes: list[str]

    def to_json(self) -> str:
        ratios = [asdict(r) | {"reached": r.reached} for r in self.ratios]
        return json.dumps(asdict(self) | {"ratios": ratios, "kind": "measured"}, indent=1)

    def tables(self) -> list[tuple[str, Table]]:
        """Each with its title, which may be wider."""
        return [self._ratios(), self._bandwidth(), self._loading()]

    def print(self, console: Console | None = None) -> None:
        console = console or Console()
        for title, table in self.tables():
            console.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
            console.print(table)
        for storage, gap in self.agreement.items():
            console.print(f"measured: last logits of both sides differ by at most {gap:.2g} ({storage})")
        for note in self.notes:
            console.print(f"note: {note}", soft_wrap=True)

    def _ratios(self) -> tuple[str, Table]:
        machine, how = self.machine, self.settings
        title = (
            f"{self.model}, measured: {machine['cpu']}, {machine['kernels']}, {how['threads']} threads, "
            f"medians of {how['rounds']} interleaved rounds"
        )
        table = _table("what", "storage", "assay tok/s", "peer", "its tok/s", "ratio", "wanted")
        for r in self.ratios:
            goal = (
                "" if r.wanted is None else f"{r.wanted:g} " + {True: "reached", False: "missed", None: ""}[r.reached]
            )
            table.add_row(
                r.what,
                r.storage,
                f"{r.ours:.1f}",
                r.peer,
                "-" if r.theirs is None else f"{r.theirs:.1f}",
                "-" if r.ratio is None else f"{r.ratio:.2f}",
                goal,
            )
        return title, table

    def _bandwidth(self) -> tuple[str, Table]:
        table = _table("storage", "weights read a token", "read at", "machine reads at", "share")
        for row in self.bandwidth:
            table.add_row(
                row["storage"],
                f"{row['bytes'] / 1e6:.1f} MB",
                f"{row['read'] / 1e9:.1f} GB/s",
                f"{row['machine'] / 1e9:.1f} GB/s",
                f"{row['share']:.0%}",
            )
        return "decoding and memory, measured", table

    def _loading(self) -> tuple[str, Table]:
        table = _table("load", "seconds")
        for what, taken in self.loading.items():
            table.add_row(what, "-" if taken is None else f"{taken:.1f}")
        return "loading until the first logits are out, imports aside, measured", table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
