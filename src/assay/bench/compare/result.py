"""What a comparison gives back, and a run that is opened again from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from assay import report
from assay.bench.compare import cells as store
from assay.bench.compare.summarise import summarise
from assay.core.errors import AssayError
from assay.report import Summary

if TYPE_CHECKING:
    from assay.bench.compare.plan import Plan


@dataclass(frozen=True, repr=False)
class Result:
    """A finished (or planned) comparison. `folder` holds run.json, cells.jsonl, cells.csv, report.html and picture.svg.

    After a dry run `summary` is None and `expected` says how many seconds the unfinished cells should take. A run that
    was opened again has no `plan`.
    """

    folder: Path
    plan: Plan | None
    summary: Summary | None
    expected: float | None = None

    def __repr__(self) -> str:
        if self.summary is None:
            return f"Result({self.folder}: planned, about {self.expected or 0:.0f} s)"
        done = f"{self.summary.finished} of {self.summary.planned} cells"
        return f"Result({self.folder}: {done}. {self.summary.recommendation.says})"

    @property
    def cells(self) -> list[dict[str, Any]]:
        return list(self.summary.cells) if self.summary else []

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def print(self, console: Console | None = None) -> None:
        """The terminal tables."""
        if self.summary:
            report.print_summary(self.summary, console)


def open_run(folder: str | Path) -> Result:
    """A run from its folder: summarised and reported again, nothing measured. Raises AssayError where there is none."""
    run, cells = read_run(folder)
    limits = run.get("limits", {})
    planned = max(run.get("planned", 0), sum(not cell.get("skipped") for cell in cells))
    summary = summarise(run, cells, planned=planned, **limits)
    write_reports(summary, Path(folder))
    return Result(Path(folder), None, summary)


def read_run(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """run.json and the finished cells of a folder. Raises AssayError where they are no run's."""
    run, cells = store.read(folder)
    if not cells:
        raise AssayError(f"{folder} holds no finished cell")
    for cell in cells:
        if lacking := [name for name in ("task", "policy", "budget", "example") if name not in cell]:
            raise AssayError(f"{folder} is damaged: cell {cell['cell']} lacks {', '.join(lacking)}")
    return run, cells


def write_reports(summary: Summary, folder: Path) -> None:
    report.write_csv(summary, folder / "cells.csv")
    report.write_page(summary, folder / "report.html")
    report.write_text(folder / "picture.svg", report.picture(summary))
