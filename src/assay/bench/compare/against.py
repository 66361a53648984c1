"""Two runs side by side: the same cells paired by example, and what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from assay.bench.compare.pairs import Cell, Paired, difference, quality
from assay.bench.compare.result import read_run
from assay.core.errors import AssayError
from assay.report.changes import Change, Changes, Flip, print_changes, write_changes

Key = tuple[str, int, str, str]  # task, length, policy, budget


def against(folder: str | Path, other: str | Path) -> Changes:
    """What changed from `other` to `folder`, printed and written to `against.html` in `folder`.

    Raises AssayError where one is no run, or they share no cell.
    """
    found = compare_runs(str(folder), *read_run(folder), str(other), *read_run(other))
    write_changes(found, Path(folder) / "against.html")
    print_changes(found)
    return found


def compare_runs(
    here: str, run: Mapping[str, Any], cells: Sequence[Cell],
    there: str, other_run: Mapping[str, Any], other_cells: Sequence[Cell],
) -> Changes:  # fmt: skip
    """Cells are the same where task, length, seed, example, policy and budget are; the model and versions may differ."""
    seeds = [r.get("fixed", {}).get("seed") for r in (run, other_run)]
    if seeds[0] != seeds[1]:
        raise AssayError(f"{here} has seed {seeds[0]}, {there} seed {seeds[1]}: their examples are not the same")
    mine, theirs = _grouped(cells), _grouped(other_cells)
    several = len({length for _, length, _, _ in mine}) > 1
    rows, flips, pairs = [], [], []
    for key in mine:
        shared = sorted(mine[key].keys() & theirs.get(key, {}).keys())
        if not shared:
            continue
        name = f"{key[0]} at {key[1]}" if several else key[0]
        both = [(mine[key][i], theirs[key][i]) for i in shared]
        turned = [_flip(name, a, b) for a, b in both]
        flips += [flip for flip in turned if flip]
        rows.append(_change(name, key, mine[key], theirs[key], both, turned))
        pairs += both
    if not pairs:
        raise AssayError(f"{here} and {there} share no cell: no task, length, policy and budget is in both")
    return Changes(
        here, there, _settings(run, other_run), len(pairs), sum(_same(a, b) for a, b in pairs),
        sum(map(len, mine.values())) - len(pairs), sum(map(len, theirs.values())) - len(pairs),
        sum(a.get("text") != b.get("text") for a, b in pairs if a.get("text") and b.get("text")),
        tuple(rows), tuple(flips), tuple(dict.fromkeys(r.policy for r in rows)),
    )  # fmt: skip


def _grouped(cells: Sequence[Cell]) -> dict[Key, Paired]:
    groups: dict[Key, Paired] = {}
    for c in cells:
        if not c.get("skipped"):
            groups.setdefault((c["task"], c.get("length", 0), c["policy"], c["budget"]), {})[c["example"]] = c
    return groups


def _change(
    name: str, key: Key, mine: Paired, theirs: Paired, both: Sequence[tuple[Cell, Cell]], turned: Sequence[Flip | None]
) -> Change:
    nats = both[0][0].get("metric") == "nll"
    sign = -1.0 if nats else 1.0
    apart = difference(mine, theirs, lambda c: sign * quality(c))
    assert apart is not None  # they share an example
    here, there = zip(*both, strict=True)
    rates = [[c["tokens_per_second"] for c in side if c.get("tokens_per_second")] for side in (here, there)]
    return Change(
        name, key[2], key[3], "nll" if nats else "share", fmean(map(quality, here)), fmean(map(quality, there)), apart,
        fmean(c.get("bytes") or 0.0 for c in here), fmean(c.get("bytes") or 0.0 for c in there),
        *(median(rate) if rate else None for rate in rates),
        (sum(bool(f and f.better) for f in turned), sum(bool(f and not f.better) for f in turned)),
    )  # fmt: skip


def _flip(name: str, mine: Cell, other: Cell) -> Flip | None:
    right = [c["score"] >= 0.5 for c in (mine, other)]
    if mine.get("metric") == "nll" or right[0] == right[1]:
        return None
    label = mine["policy"] if mine["policy"] == "full" else f"{mine['policy']}@{mine['budget']}"
    texts = mine.get("wanted") or "", mine.get("answer") or "", other.get("answer") or ""
    return Flip(name, label, mine["policy"], mine["example"], *texts, better=right[0])


def _same(mine: Cell, other: Cell) -> bool:
    return all(mine.get(name) == other.get(name) for name in ("score", "logprob"))


def _settings(run: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    sides = [{**r.get("fixed", {}), **r.get("versions", {})} for r in (run, other)]
    names = [n for n in dict.fromkeys([*sides[0], *sides[1]]) if sides[0].get(n) != sides[1].get(n)]
    found = [(n, str(sides[0].get(n, "–")), str(sides[1].get(n, "–"))) for n in names]
    if run.get("machines") != other.get("machines"):
        texts = [
            "; ".join(", ".join(f"{k} {v}" for k, v in m.items()) for m in r.get("machines", [])) for r in (run, other)
        ]
        found.append(("machines", *texts))  # type: ignore[arg-type]
    return tuple(found)
