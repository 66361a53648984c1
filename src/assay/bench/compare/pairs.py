"""Cells paired by example: estimates of one arm, differences between two, and what may be said about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from assay.report.summary import Difference, Estimate, Verdict
from assay.tasks.statistics import bootstrap_mean, paired_bootstrap, sign_flip_test, wilson_interval

FEW = 6  # fewer paired examples than this can tell nothing apart at 95%, so they carry no verdict

Cell = Mapping[str, Any]
Paired = dict[int, Cell]  # by example
Groups = dict[tuple[str, int, str, str], Paired]  # by task, length, policy and budget


def quality(cell: Cell) -> float:
    """The share of right answers, or for text the negative log-likelihood in nats a token."""
    return -logprob(cell) if cell.get("metric") == "nll" else float(cell["score"])


def logprob(cell: Cell) -> float:
    """Log-probability of the right answer, in nats a token."""
    if cell.get("logprob") is None:
        return math.nan
    return float(cell["logprob"]) / max(1, cell.get("answer_tokens") or 1)


def estimate(values: Sequence[float]) -> Estimate:
    """Mean with a 95% interval: Wilson's where all values are 0 or 1 (it has a width even where all agree), else the bootstrap's."""
    if len(values) < FEW:
        return Estimate(fmean(values), None, None, len(values))
    if set(values) <= {0.0, 1.0}:
        found = wilson_interval(int(sum(values)), len(values))
    else:
        found = bootstrap_mean(values)
    return Estimate(found.value, found.low, found.high, len(values))


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
        verdict = direction if sign_flip_test(mine, theirs) <= 0.05 else "too few examples"
    return Difference(found.value, found.low, found.high, len(pairs), verdict, identical)
