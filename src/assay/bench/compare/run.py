"""`compare`: run the grid, write each cell as it is finished, say what it adds up to."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from assay import report
from assay.bench.compare import cells as store
from assay.bench.compare.defaults import fitting
from assay.bench.compare.machine import machine, versions, weights_checksum
from assay.bench.compare.measure import Bench, Extras
from assay.bench.compare.plan import Cell, Plan, check_names, expected_seconds, lay_out
from assay.bench.compare.progress import Progress, print_plan
from assay.bench.compare.settings import POLICIES, Settings
from assay.bench.compare.summarise import summarise
from assay.core.errors import AssayError
from assay.report import Summary

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


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


def compare(
    model: str | Transformer,
    parts: str | Sequence[str] = POLICIES,
    *,
    out: str | Path | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    console: Console | None = None,
    **settings: Any,
) -> Result:
    """Measure cache policies on a model against the full cache and against random.

    `model`: a name as `assay.load` takes it, or a loaded model. `parts`: policy expressions, each with a budget of its
    own (`snapkv@512tok`) or measured at all `budgets`. `out`: the folder; by default one under `runs/` that the same
    settings find again. Further keywords are the fields of `Settings`: tasks, budgets, length, examples, seed, aware, …

    Cells that the folder already holds are not measured again. Ctrl-C keeps every finished cell, writes the report of
    those, and raises KeyboardInterrupt. Raises AssayError for anything a user can mend.
    """
    chosen = Settings.of(settings)
    console = console or Console(stderr=True, quiet=quiet)
    parts = [parts] if isinstance(parts, str) else parts
    check_names(parts, chosen)
    loaded = _load(model, chosen, console)
    chosen = replace(
        fitting(loaded, chosen), device=str(loaded.device), dtype=str(loaded.embed.weight.dtype).removeprefix("torch.")
    )
    with console.status("making the examples"):
        fixed = _fixed(loaded, chosen)
        plan = lay_out(loaded, parts, chosen, fixed)
    folder = Path(out) if out is not None else _folder(loaded, fixed)
    if dry_run:
        return _dry(loaded, plan, folder, chosen, console)
    return _measure(loaded, plan, folder, chosen, fixed, console)


run = compare


def open_run(folder: str | Path) -> Result:
    """A run from its folder: summarised and reported again, nothing measured. Raises AssayError where there is none."""
    run, cells = store.read(folder)
    if not cells:
        raise AssayError(f"{folder} holds no finished cell")
    for cell in cells:
        if lacking := [name for name in ("task", "policy", "budget", "example") if name not in cell]:
            raise AssayError(f"{folder} is damaged: cell {cell['cell']} lacks {', '.join(lacking)}")
    limits = run.get("limits", {})
    planned = max(run.get("planned", 0), sum(not cell.get("skipped") for cell in cells))
    summary = summarise(run, cells, planned=planned, **limits)
    _write(summary, Path(folder))
    return Result(Path(folder), None, summary)


def _load(model: str | Transformer, settings: Settings, console: Console) -> Transformer:
    if not isinstance(model, (str, Path)):
        return model.eval()
    from assay.checkpoints import load

    with console.status(f"loading {model}"):
        return load(str(model), device=settings.device, dtype=settings.dtype).eval()


def _fixed(model: Transformer, settings: Settings) -> dict[str, Any]:
    """What decides every number of a run; a folder belongs to one such set."""
    return {
        "model": model.name, "checksum": weights_checksum(model), "length": settings.length, "seed": settings.seed,
        "aware": settings.aware, "generate": settings.generate, "device": settings.device, "dtype": settings.dtype,
        "assay": versions()["assay"], "torch": versions()["torch"],
    }  # fmt: skip


def _folder(model: Transformer, fixed: dict[str, Any]) -> Path:
    plain = re.sub(r"[^\w.-]+", "-", Path(model.name).name).strip("-") or "model"
    return Path("runs") / f"{plain}-{fixed['length']}-{store.fingerprint(fixed)[:8]}"


def _dry(model: Transformer, plan: Plan, folder: Path, settings: Settings, console: Console) -> Result:
    done = set()
    if (folder / store.RUN).exists():
        done = {c["cell"] for c in store.read(folder)[1] if not c.get("skipped")}
    left = [c for c in plan.possible if c.name not in done]
    expected = expected_seconds(model, plan, left, settings)
    print_plan(plan, done, expected, folder, console)
    return Result(folder, plan, None, sum(expected.values()))


def _measure(
    model: Transformer, plan: Plan, folder: Path, settings: Settings, fixed: dict[str, Any], console: Console
) -> Result:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    grid = {
        "policies": list(plan.policies), "budgets": list(plan.budgets), "tasks": list(plan.tasks), "examples": settings.examples,
    }  # fmt: skip
    record = {
        "grid": grid, "versions": versions(), "machine": machine(settings.device), "notes": plan.notes, "refused": plan.refused(),
        "vocab_size": model.config.vocab_size, "created": created, "planned": len(plan.possible), "limits": _limits(settings),
    }  # fmt: skip
    with store.CellStore(folder, fixed, record) as kept:
        left = [c for c in plan.possible if c.name not in kept]
        expected = expected_seconds(model, plan, left, settings) if left else {}
        try:
            with Progress(console, expected, done=len(plan.possible) - len(left)) as progress:
                for (task, example), group in groupby(left, key=lambda c: (c.task, c.example)):
                    _example(model, plan, task, example, list(group), settings, kept, progress)
        except KeyboardInterrupt:
            _report(plan, kept, settings)  # of what is finished
            raise
        summary = _report(plan, kept, settings)
    if len(kept) == 0:
        raise AssayError("nothing was measured: every cell was refused")
    return Result(folder, plan, summary)


def _example(
    model: Transformer, plan: Plan, task: str, example: int, cells: list[Cell], settings: Settings,
    kept: store.CellStore, progress: Progress,
) -> None:  # fmt: skip
    """Measure one example's unfinished cells from one prefill; `full` goes first, for it is what the others are held against."""
    prompt = plan.prompts[task][example]
    needed = {c.policy: plan.policies[c.policy] for c in cells if c.policy != "full"}
    policies = {name: policy for name, policy in needed.items() if policy is not None}
    for policy in policies.values():
        policy.reseed(settings.seed * 1_000_003 + example)
    progress.say(f"{task} {example + 1}/{len(plan.prompts[task])}: reading the context")
    bench = Bench(model, plan.tasks[task], prompt, policies)
    room = model.config.context - len(prompt) - settings.speed_steps - 1
    timed = settings.speed_steps if example < settings.speed_examples and room > 0 else 0
    generate = settings.generate and plan.tasks[task].metric != "nll"
    extras = Extras(generate, timed, example < settings.picture_examples)
    if all(c.policy != "full" for c in cells):  # resumed: full's cell is on the disk, but the others' reference is not
        bench.measure("full", "1", replace(extras, speed_steps=0, picture=False))
    for cell in sorted(cells, key=lambda c: c.policy != "full"):
        progress.say(f"{task} {example + 1}/{len(plan.prompts[task])}: {cell.policy}@{cell.budget}")
        try:
            found = {**bench.measure(cell.policy, cell.budget, extras), "skipped": None}
        except (AssayError, torch.OutOfMemoryError) as error:
            why = str(error).splitlines()[0] if isinstance(error, AssayError) else f"out of memory on {settings.device}"
            found = {"skipped": why}
        kept.write({**_head(model, plan, cell, settings), **found})
        progress.finish(cell.name)


def _head(model: Transformer, plan: Plan, cell: Cell, settings: Settings) -> dict[str, Any]:
    return {
        "cell": cell.name, "model": model.name, "policy": cell.policy, "budget": cell.budget, "task": cell.task,
        "metric": plan.tasks[cell.task].metric, "length": settings.length, "seed": settings.seed, "example": cell.example,
        "aware": settings.aware, "measured": round(time.time(), 3),
    }  # fmt: skip


def _report(plan: Plan, kept: store.CellStore, settings: Settings) -> Summary:
    mine = [kept.cells[c.name] for c in plan.possible if c.name in kept.cells]
    summary = summarise(kept.run, mine, planned=len(plan.possible), **_limits(settings))
    if mine:
        _write(summary, kept.folder)
    return summary


def _limits(settings: Settings) -> dict[str, float]:
    return {"floor": settings.floor, "max_loss": settings.max_loss, "max_bytes": settings.max_bytes}


def _write(summary: Summary, folder: Path) -> None:
    report.write_csv(summary, folder / "cells.csv")
    report.write_page(summary, folder / "report.html")
    report.write_text(folder / "picture.svg", report.picture(summary))
