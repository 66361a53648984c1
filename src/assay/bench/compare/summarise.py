"""From finished cells to what may be said about them: means, paired intervals, verdicts, and what says nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from assay.bench.compare.findings import FEW, findings
from assay.bench.compare.recommend import recommend
from assay.report.summary import Difference, Estimate, Failure, Kept, Row, Skip, Summary, TaskSummary, Verdict
from assay.tasks.statistics import bootstrap_mean, distinguishable, paired_bootstrap, wilson_interval

FLOOR = 0.1  # where full's share of right answers is no higher than this, a task says nothing
Cell = Mapping[str, Any]
Paired = dict[int, Cell]  # by example


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
    groups: dict[tuple[str, str, str], Paired] = defaultdict(dict)
    for cell in measured:
        groups[cell["task"], cell["policy"], cell["budget"]][cell["example"]] = cell
    names = {key: _ordered(run, key, measured) for key in ("tasks", "policies", "budgets")}
    tasks = tuple(_task(name, groups, names, floor, run) for name in names["tasks"])
    return Summary(
        run=dict(run),
        tasks=tasks,
        policies=tuple(names["policies"]),
        budgets=tuple(names["budgets"]),
        recommendation=recommend(run, tasks, max_loss=max_loss, max_bytes=max_bytes),
        findings=findings(tasks),
        notes=tuple((n["policy"], n["says"]) for n in run.get("notes", ())),
        skipped=_skipped(run, cells),
        failures=_failures(groups),
        kept=_kept(measured),
        cells=tuple(dict(c) for c in cells),
        finished=len(measured),
        planned=len(measured) if planned is None else planned,
    )


def _ordered(run: Mapping[str, Any], key: str, cells: Sequence[Cell]) -> list[str]:
    """Names in the order they were asked for, then any others in the order they appear."""
    field = {"tasks": "task", "policies": "policy", "budgets": "budget"}[key]
    seen = {c[field]: None for c in cells if not (key == "budgets" and c["policy"] == "full")}
    asked = [name for name in run.get("grid", {}).get(key, ()) if name in seen]
    return list(dict.fromkeys([*asked, *seen]))


def _task(name: str, groups: Mapping, names: Mapping[str, list[str]], floor: float, run: Mapping[str, Any]) -> TaskSummary:
    full = groups.get((name, "full", "1"), {})
    rows = []
    for policy in names["policies"]:
        for budget in names["budgets"]:
            group = groups.get((name, policy, budget))
            if group and policy != "full":
                rows.append(_row(group, full, groups.get((name, "random", budget), {})))
    whole = _row(full, {}, {}) if full else None
    measure = whole.measure if whole else rows[0].measure if rows else "share"
    return TaskSummary(
        name=name,
        measure=measure,
        examples=len(full) or max((r.quality.examples for r in rows), default=0),
        full=whole,
        rows=tuple(rows),
        says_nothing=_says_nothing(whole, full, floor, run.get("vocab_size")),
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
        return f"{said}, no more than chance ({chance:.0%})" if chance > floor else f"{said} (at most {floor:.0%} counts as cannot)"
    return None


def quality(cell: Cell) -> float:
    """The share of right answers, or for text the negative log-likelihood in nats a token."""
    return -logprob(cell) if cell.get("metric") == "nll" else float(cell["score"])


def logprob(cell: Cell) -> float:
    """Log-probability of the right answer, in nats a token."""
    if cell.get("logprob") is None:
        return math.nan
    return float(cell["logprob"]) / max(1, cell.get("answer_tokens") or 1)


def _row(group: Paired, full: Paired, random: Paired) -> Row:
    first = next(iter(group.values()))
    nll = first.get("metric") == "nll"
    sign = -1.0 if nll else 1.0
    others = {} if first["policy"] == "random" else random
    return Row(
        task=first["task"],
        policy=first["policy"],
        budget=first["budget"],
        measure="nll" if nll else "share",
        quality=estimate([quality(c) for c in group.values()]),
        against_full=difference(group, full, lambda c: sign * quality(c)),
        against_random=difference(group, others, lambda c: sign * quality(c)),
        logprob=None if nll else _finite_estimate([logprob(c) for c in group.values()]),
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
    )


def _values(group: Paired, key: str) -> list[float]:
    return [float(c[key]) for c in group.values() if c.get(key) is not None]


def _mean(group: Paired, key: str) -> float | None:
    values = _values(group, key)
    return fmean(values) if values else None


def _median(group: Paired, key: str) -> float | None:
    values = _values(group, key)
    return median(values) if values else None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean with a 95% interval: Wilson's where all values are 0 or 1 (it has a width even where all agree), else the bootstrap's."""
    if len(values) < FEW:
        return Estimate(fmean(values), None, None, len(values))
    if set(values) <= {0.0, 1.0}:
        found = wilson_interval(int(sum(values)), len(values))
    else:
        found = bootstrap_mean(values)
    return Estimate(found.value, found.low, found.high, len(values))


def _finite_estimate(values: Sequence[float]) -> Estimate | None:
    finite = [v for v in values if math.isfinite(v)]
    return estimate(finite) if finite else None


def difference(group: Paired, reference: Paired, value: Callable[[Cell], float]) -> Difference | None:
    """Paired by example; None where none is shared or the value is missing."""
    pairs = [(value(group[i]), value(reference[i])) for i in sorted(group.keys() & reference.keys())]
    pairs = [p for p in pairs if all(map(math.isfinite, p))]
    if not pairs:
        return None
    mine, theirs = map(list, zip(*pairs, strict=True))
    mean, identical = fmean(a - b for a, b in pairs), mine == theirs
    if len(pairs) < FEW:
        return Difference(mean, None, None, len(pairs), "too few examples", identical)
    found = paired_bootstrap(mine, theirs)
    verdict: Verdict = "not distinguishable"
    if found.excludes_zero:  # a sign-flip test guards small samples, where the bootstrap is too sure of itself
        direction: Verdict = "better" if found.value > 0 else "worse"
        verdict = direction if distinguishable(mine, theirs) else "too few examples"
    return Difference(found.value, found.low, found.high, len(pairs), verdict, identical)


def _skipped(run: Mapping[str, Any], cells: Sequence[Cell]) -> tuple[Skip, ...]:
    reasons = [(r["what"], r["cells"], r["why"]) for r in run.get("refused", ())]
    at_run: dict[tuple[str, str], int] = defaultdict(int)
    for c in (c for c in cells if c.get("skipped")):
        at_run[f"{c['policy']}@{c['budget']} on {c['task']}", c["skipped"]] += 1
    return tuple(Skip(*r) for r in reasons) + tuple(Skip(what, n, why) for (what, why), n in at_run.items())


def _failures(groups: Mapping, each: int = 2) -> tuple[Failure, ...]:
    """Answers that full got right and a policy got wrong, at most `each` a policy, budget and task."""
    found = []
    for (task, policy, budget), group in groups.items():
        full = groups.get((task, "full", "1"), {})
        wrong = [i for i, c in sorted(group.items()) if c.get("metric") != "nll" and c["score"] < 0.5 <= full.get(i, c)["score"]]
        for example in wrong[:each]:
            c = group[example]
            texts = (c.get("prompt") or "", c.get("wanted") or "", c.get("answer") or "")
            found.append(Failure(task, policy, budget, example, *texts, c.get("survived")))
    return tuple(found)


def _kept(cells: Sequence[Cell]) -> tuple[Kept, ...]:
    return tuple(
        Kept(
            c["task"], c["policy"], c["budget"], c["example"], c["tokens"],
            {int(layer): list(shares) for layer, shares in c["positions"].items()},
            tuple((int(a), int(b)) for a, b in c.get("spans") or ()),
        )
        for c in cells
        if c.get("positions") and c["policy"] != "full"
    )
