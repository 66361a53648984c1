"""How far a run is and how long it has to go, and the plan of one that has not begun."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path
from types import TracebackType

from rich import progress as bars
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from assay.bench.compare.plan import Plan

EVERY = 30.0  # seconds between lines where there is no terminal to draw a bar on


class Progress:
    """A bar with the time left: the expected seconds of the cells to come, scaled by how the finished ones went."""

    def __init__(self, console: Console, expected: Mapping[str, float], done: int) -> None:
        self.console, self.expected, self.done = console, dict(expected), done
        self.total = sum(expected.values())
        self.spent = 0.0  # expected seconds of what is finished
        self.finished = 0
        self.began = self.said = time.monotonic()
        self.bar = bars.Progress(
            bars.TextColumn("{task.fields[cells]}"), bars.BarColumn(), bars.TextColumn("{task.fields[left]}"),
            bars.TextColumn("[dim]{task.description}"), console=console, transient=True, refresh_per_second=4,
            disable=not console.is_terminal or not expected,
        )  # fmt: skip
        self.task = self.bar.add_task("", total=self.total, cells=self._cells(), left="")

    def __enter__(self) -> Progress:
        if self.done and self.expected:
            self.console.print(f"{self.done} cells are finished already, {len(self.expected)} to go")
        self.bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.__exit__(kind, error, trace)

    def say(self, what: str) -> None:
        self.bar.update(self.task, description=escape(what))

    def finish(self, cell: str) -> None:
        """One more cell is on the disk."""
        self.spent += self.expected[cell]
        self.finished += 1
        self.bar.update(self.task, completed=self.spent, cells=self._cells(), left=duration(self.left()) + " left")
        if not self.console.is_terminal and time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            self.console.print(f"{self._cells()}, about {duration(self.left())} left")

    def left(self) -> float:
        """Seconds to go."""
        pace = (time.monotonic() - self.began) / self.spent if self.spent else 1.0
        return max(0.0, self.total - self.spent) * pace

    def _cells(self) -> str:
        return f"{self.done + self.finished}/{self.done + len(self.expected)} cells"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_plan(plan: Plan, done: Set[str], expected: Mapping[str, float], folder: Path, console: Console) -> None:
    """Every cell, by task, policy and budget, with the time it should take or why it is impossible."""
    groups = defaultdict(list)
    for cell in plan.cells:
        groups[cell.task, cell.policy, cell.budget, cell.refused].append(cell)
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in ("task", "policy@budget", "examples", "cells", "finished", "expected"):
        table.add_column(name, justify="left" if name in ("task", "policy@budget") else "right", overflow="fold")
    for (task, policy, budget, why), cells in groups.items():
        finished = sum(c.name in done for c in cells)
        seconds = sum(expected.get(c.name, 0.0) for c in cells)
        said = f"[red]impossible: {escape(why)}[/]" if why else duration(seconds)
        first, last = cells[0].example, cells[-1].example
        span = str(first) if first == last else f"{first}–{last}"
        table.add_row(escape(task), escape(f"{policy}@{budget}"), span, str(len(cells)), str(finished), said)
    console.print(table)
    for note in plan.notes:
        console.print(f"note: {escape(note['policy'])}: {escape(note['says'])}", soft_wrap=True)
    possible = len(plan.possible)
    left = sum(c.name not in done for c in plan.possible)
    refused = f", {len(plan.cells) - possible} impossible" if possible < len(plan.cells) else ""
    time_left = duration(sum(expected.values()))
    console.print(f"{len(plan.cells)} cells{refused}, {left} to measure: about {time_left}; into {escape(str(folder))}", soft_wrap=True)
