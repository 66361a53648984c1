"""From finished cells to what may be said about them: means, paired intervals, verdicts, and what says nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from assay.bench.compare.findings import findings
from assay.bench.compare.leaderboard import front, leaderboard
from assay.bench.compare.pairs import Cell, Groups, Paired, difference, estimate, logprob, quality
from assay.bench.compare.recommend import recommend
from assay.bench.compare.shown import failures, kept, texts
from assay.report.summary import Estimate, Row, Skip, Summary, TaskSummary

FLOOR = 0.1  # where full's share of right answers is no higher than this, a task says nothing


def summarise(
    run: Mapping[str, Any],
    cells: Sequence[Cell],
    *,
    planned: int | None = None,
    floor: float = FLOOR,
    max_loss: float = 0.01,
    max_bytes: float = 1.0,
) -> Summary:
    """The summary of a run's cells. `floor`: full's share of right answers up to which a task says nothing."""
    measured = [c for c in cells if not c.get("skipped")]
    groups: Groups = defaultdict(dict)
    for cell in measured:
        groups[cell["task"], cell.get("length", 0), cell["policy"], cell["budget"]][cell["example"]] = cell
    names = {key: _ordered(run, key, measured) for key in ("tasks", "policies", "budgets")}
    where = named_tasks(names["tasks"], measured)
    tasks = tuple(_task(name, task, length, groups, names, floor, run) for (task, length), name in where.items())
    return Summary(
        run=dict(run),
        tasks=tasks,
        policies=tuple(names["policies"]),
        budgets=tuple(names["budgets"]),
        recommendation=recommend(run, tasks, max_loss=max_loss, max_bytes=max_bytes),
        findings=findings(tasks),
        notes=tuple((n["policy"], n["says"]) for n in run.get("notes", ())),
        skipped=_skipped(run, cells, named_tasks(names["tasks"], cells)),
        leaders=leaderboard(tasks, groups),
        failures=failures(groups, where),
        kept=kept(measured, where),
        texts=texts(measured, where),
        cells=tuple(dict(c) for c in cells),
        finished=len(measured),
        planned=max(len(measured), (planned or 0) - (len(cells) - len(measured))),
    )


def _ordered(run: Mapping[str, Any], key: str, cells: Sequence[Cell]) -> list[str]:
    """Names in the order they were asked for, then any others in the order they appear."""
    field = {"tasks": "task", "policies": "policy", "budgets": "budget"}[key]
    seen = {c[field]: None for c in cells if not (key == "budgets" and c["policy"] == "full")}
    asked = [name for name in run.get("grid", {}).get(key, ()) if name in seen]
    return list(dict.fromkeys([*asked, *seen]))


def named_tasks(tasks: Sequence[str], cells: Sequence[Cell]) -> dict[tuple[str, int], str]:
    """What each task at each length is called: by its task, and its length where there are several."""
    found = {(c["task"], c.get("length", 0)) for c in cells}
    several = len({length for _, length in found}) > 1
    places = {task: place for place, task in enumerate([*tasks, *sorted({task for task, _ in found} - set(tasks))])}
    order = sorted(found, key=lambda where: (places[where[0]], where[1]))
    return {(task, length): f"{task} at {length}" if several else task for task, length in order}


def _task(
    name: str,
    task: str,
    length: int,
    groups: Groups,
    names: Mapping[str, list[str]],
    floor: float,
    run: Mapping[str, Any],
) -> TaskSummary:
    full = groups.get((task, length, "full", "1"), {})
    rows = []
    for policy in names["policies"]:
        for budget in names["budgets"]:
            group = groups.get((task, length, policy, budget))
            if group and policy != "full":
                rows.append(_row(name, group, full, groups.get((task, length, "random", budget), {})))
    whole = _row(name, full, {}, {}) if full else None
    measure = whole.measure if whole else rows[0].measure if rows else "share"
    return TaskSummary(
        name=name,
        measure=measure,
        examples=len(full) or max((r.quality.examples for r in rows), default=0),
        full=whole,
        rows=tuple(rows),
        says_nothing=_says_nothing(whole, full, floor, run.get("vocab_size")),
        task=task,
        length=length,
        front=front(
            {r.name: (r.bytes, -r.quality.mean if measure == "nll" else r.quality.mean) for r in (whole, *rows) if r}
        ),
    )


def _says_nothing(whole: Row | None, full: Paired, floor: float, vocabulary: int | None) -> str | None:
    if whole is None:
        return "the full cache was not measured on it"
    if whole.measure == "nll":
        if vocabulary and whole.quality.mean >= 0.95 * math.log(vocabulary):
            return f"full predicts no better than chance ({whole.quality.mean:.2f} nats a token)"
        return None
    chance = max((c.get("chance") or 0.0 for c in full.values()), default=0.0)
    if whole.quality.mean <= max(floor, chance):
        said = f"full itself answers {whole.quality.mean:.0%} of it"
        return (
            f"{said}, no more than chance ({chance:.0%})"
            if chance > floor
            else f"{said} (at most {floor:.0%} counts as cannot)"
        )
    return None


def _row(name: str, group: Paired, full: Paired, random: Paired) -> Row:
    first = next(iter(group.values()))
    nll = first.get("metric") == "nll"
    sign = -1.0 if nll else 1.0
    others = {} if first["policy"] == "random" else random
    return Row(
        task=name,
        policy=first["policy"],
        budget=first["budget"],
        measure="nll" if nll else "share",
        quality=estimate([quality(c) for c in group.values()]),
        against_full=difference(group, full, lambda c: sign * quality(c)),
        against_random=difference(group, others, lambda c: sign * quality(c)),
        logprob=None if nll else _finite([logprob(c) for c in group.values()]),
        logprob_against_full=None if nll else difference(group, full, logprob),
        kl=_mean(group, "kl"),
        survived=_mean(group, "survived"),
        kept=_mean(group, "kept"),
        tokens=_mean(group, "tokens") or 0.0,
        bytes=_mean(group, "bytes") or 0.0,
        bytes_eligible=_mean(group, "bytes_eligible") or 0.0,
        bytes_full=_mean(group, "bytes_full") or 0.0,
        bytes_full_eligible=_mean(group, "bytes_full_eligible") or 0.0,
        peak_bytes=_mean(group, "peak_bytes"),
        first_token=_median(group, "first_token"),
        tokens_per_second=_median(group, "tokens_per_second"),
        seconds_compress=_median(group, "seconds_compress"),
        bytes_by_layer=_by_layer(group),
    )


def _by_layer(group: Paired) -> tuple[float, ...]:
    """Mean bytes of each layer, where every cell says them."""
    lists = [c.get("bytes_by_layer") for c in group.values()]
    return tuple(map(fmean, zip(*lists, strict=True))) if all(lists) else ()


def _finite(values: Sequence[float]) -> Estimate | None:
    finite = [v for v in values if math.isfinite(v)]
    return estimate(finite) if finite else None


def _values(group: Paired, key: str) -> list[float]:
    return [float(c[key]) for c in group.values() if c.get(key) is not None]


def _mean(group: Paired, key: str) -> float | None:
    values = _values(group, key)
    return fmean(values) if values else None


def _median(group: Paired, key: str) -> float | None:
    values = _values(group, key)
    return median(values) if values else None


def _skipped(run: Mapping[str, Any], cells: Sequence[Cell], where: Mapping[tuple[str, int], str]) -> tuple[Skip, ...]:
    reasons = [(r["what"], r["cells"], r["why"]) for r in run.get("refused", ())]
    at_run: dict[tuple[str, str], int] = defaultdict(int)
    for c in (c for c in cells if c.get("skipped")):
        named = where[c["task"], c.get("length", 0)]
        at_run[f"{c['policy']}@{c['budget']} on {named}", c["skipped"]] += 1
    return tuple(Skip(*r) for r in reasons) + tuple(Skip(what, n, why) for (what, why), n in at_run.items())
