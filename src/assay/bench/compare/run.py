"""`compare`: run the grid, write each cell as it is finished, say what it adds up to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from assay.bench.compare import cells as store
from assay.bench.compare.asked import check_names
from assay.bench.compare.defaults import fitting
from assay.bench.compare.expected import expected_seconds
from assay.bench.compare.group import Group, Lost, groups, measured
from assay.bench.compare.machine import machine, versions, weights_checksum
from assay.bench.compare.plan import Plan, lay_out
from assay.bench.compare.progress import Progress, print_plan
from assay.bench.compare.result import Result, write_reports
from assay.bench.compare.settings import POLICIES, Settings
from assay.bench.compare.summarise import summarise
from assay.core.errors import AssayError
from assay.report import Summary

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


def compare(
    model: str | Transformer,
    parts: str | Sequence[str] = POLICIES,
    *,
    out: str | Path | None = None,
    on: str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    console: Console | None = None,
    **settings: Any,
) -> Result:
    """Measure cache policies on a model against the full cache and against random.

    `model`: a name as `assay.load` takes it, or a loaded model. `parts`: policy expressions, each with a budget of its
    own (`snapkv@512tok`) or measured at all `budgets`. `out`: the folder; by default one under `runs/` that the same
    settings find again. `on`: `ray` or `ray:ADDRESS` to measure on a Ray cluster. Further keywords are the fields of
    `Settings`: tasks, budgets, length, examples, seed, aware, …

    Cells that the folder already holds are not measured again. Ctrl-C keeps every finished cell, writes the report of
    those, and raises KeyboardInterrupt. Raises AssayError for anything a user can mend.
    """
    chosen = Settings.of(settings)
    address = _address(on)
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
    return _measure(loaded, plan, folder, chosen, fixed, console, address)


run = compare


def _address(on: str | None) -> str | None:
    """None: measure here; else where the Ray cluster is, empty for one of this machine."""
    if on is None:
        return None
    from assay.bench.compare import cluster

    return cluster.address_of(on)


def _load(model: str | Transformer, settings: Settings, console: Console) -> Transformer:
    if not isinstance(model, (str, Path)):
        return model.eval()
    from assay.checkpoints import load

    with console.status(f"loading {model}"):
        return load(str(model), device=settings.device, dtype=settings.dtype).eval()


def _fixed(model: Transformer, settings: Settings) -> dict[str, Any]:
    """What decides every number of a run; a folder belongs to one such set."""
    return {
        "model": model.name, "checksum": weights_checksum(model), "seed": settings.seed,
        "aware": settings.aware, "generate": settings.generate, "chunk": settings.chunk, "match": settings.match,
        "device": settings.device, "dtype": settings.dtype,
        "assay": versions()["assay"], "torch": versions()["torch"],
    }  # fmt: skip


def _folder(model: Transformer, fixed: dict[str, Any]) -> Path:
    plain = re.sub(r"[^\w.-]+", "-", Path(model.name).name).strip("-") or "model"
    return Path("runs") / f"{plain}-{store.fingerprint(fixed)[:8]}"


def _dry(model: Transformer, plan: Plan, folder: Path, settings: Settings, console: Console) -> Result:
    done = set()
    if (folder / store.RUN).exists():
        done = {c["cell"] for c in store.read(folder)[1] if not c.get("skipped")}
    left = [c for c in plan.possible if c.name not in done]
    expected = expected_seconds(model, plan, left, settings)
    print_plan(plan, done, expected, folder, console)
    return Result(folder, plan, None, sum(expected.values()))


def _measure(
    model: Transformer, plan: Plan, folder: Path, settings: Settings, fixed: dict[str, Any], console: Console,
    address: str | None,
) -> Result:  # fmt: skip
    where = {"machine": machine(settings.device)} if address is None else {"on": "a Ray cluster"}
    with store.CellStore(folder, fixed, _record(model, plan, settings) | where) as kept:
        left = [c for c in plan.possible if c.name not in kept]
        expected = expected_seconds(model, plan, left, settings) if left else {}
        try:
            with Progress(console, expected, done=len(plan.possible) - len(left)) as progress:
                work = groups(plan, left)
                if address is None:
                    records = _here(model, plan, work, settings, progress)
                else:
                    from assay.bench.compare import cluster

                    records = cluster.measured_on(address, model, plan, work, settings, progress.say, kept.saw)
                with closing(records):  # so that Ctrl-C also ends what still runs elsewhere
                    for record in records:
                        kept.write(record)
                        progress.finish(record["cell"])
        except (KeyboardInterrupt, Lost):
            _report(plan, kept, settings)  # of what is finished
            raise
        summary = _report(plan, kept, settings)
    if len(kept) == 0:
        raise AssayError("nothing was measured: every cell was refused")
    return Result(folder, plan, summary)


def _here(
    model: Transformer, plan: Plan, work: Sequence[Group], settings: Settings, progress: Progress
) -> Iterator[dict[str, Any]]:
    for group in work:
        yield from measured(model, plan.tasks[group.task], plan.policies, group, settings, progress.say)


def _record(model: Transformer, plan: Plan, settings: Settings) -> dict[str, Any]:
    """What run.json keeps for the reader beside what decides the numbers."""
    grid = {
        "policies": list(plan.policies), "budgets": list(plan.budgets), "tasks": list(plan.tasks),
        "lengths": list(settings.length), "examples": settings.examples,
    }  # fmt: skip
    return {
        "grid": grid, "versions": versions(), "notes": plan.notes, "refused": plan.refused(),
        "vocab_size": model.config.vocab_size, "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "planned": len(plan.possible), "limits": _limits(settings),
    }  # fmt: skip


def _report(plan: Plan, kept: store.CellStore, settings: Settings) -> Summary:
    mine = [kept.cells[c.name] for c in plan.possible if c.name in kept.cells]
    summary = summarise(kept.run, mine, planned=len(plan.possible), **_limits(settings))
    if mine:
        write_reports(summary, kept.folder)
    return summary


def _limits(settings: Settings) -> dict[str, float]:
    return {"floor": settings.floor, "max_loss": settings.max_loss, "max_bytes": settings.max_bytes}
