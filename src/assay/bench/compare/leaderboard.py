"""Policies over all tasks at once: what is left of the full cache's quality, for how many bytes, and what nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean

import numpy as np
from jaxtyping import Float

from assay.bench.compare.pairs import FEW, Groups, Paired, quality
from assay.report.summary import Estimate, Leader, TaskSummary

RESAMPLES = 5_000


def leaderboard(tasks: Sequence[TaskSummary], groups: Groups) -> tuple[Leader, ...]:
    """Every policy and budget that was measured on all tasks that say something, the best first; equal ones by bytes."""
    telling = [t for t in tasks if t.full is not None and not t.says_nothing]
    if not telling:
        return ()
    rows: dict[str, list] = {}
    for task in telling:
        for row in (task.full, *task.rows):
            rows.setdefault(row.name, []).append(row)
    found = {}
    for name, its in rows.items():
        if len(its) == len(telling):
            pairs = [_pairs(task, row.policy, row.budget, groups) for task, row in zip(telling, its, strict=True)]
            share = fmean(r.share for r in its)
            kept = kept_quality(pairs)
            if its[0].policy == "full":  # what the others are held against has no interval against itself
                kept = Estimate(1.0, None, None, kept.examples)
            found[name] = its[0].policy, its[0].budget, kept, fmean(r.bytes for r in its), share
    best = front({name: (share, kept.mean) for name, (_, _, kept, _, share) in found.items()})
    made = [Leader(*its, front=name in best) for name, its in found.items()]
    return tuple(sorted(made, key=lambda m: (-m.kept.mean, m.share)))


Pairs = tuple[bool, Float[np.ndarray, "examples"], Float[np.ndarray, "examples"]]


def _pairs(task: TaskSummary, policy: str, budget: str, groups: Groups) -> Pairs:
    """Whether qualities are nats (lower is better), and those of the policy and of full on the examples they share."""
    mine: Paired = groups[task.task, task.length, policy, budget]
    full: Paired = groups[task.task, task.length, "full", "1"]
    shared = sorted(mine.keys() & full.keys())
    return task.measure == "nll", *(np.array([quality(side[i]) for i in shared]) for side in (mine, full))


def kept_quality(pairs: Sequence[Pairs]) -> Estimate:
    """The mean over tasks of what is left of full's quality: its share of right answers, or full's perplexity over this one.

    The interval resamples examples within each task (Efron & Tibshirani 1993, stratified). Where not one answer differs
    it still allows that up to 1 - 0.05^(1/n) of n would (the rule of three, exactly), or it would have no width.
    """
    value, drawn, allowed = 0.0, np.zeros(RESAMPLES), 0.0
    for number, (nats, mine, full) in enumerate(pairs):
        apart = mine - full
        weights = _weights(len(apart), number)
        whole = 1.0 if nats else full.mean()
        if not whole:
            return Estimate(float("nan"), None, None, len(apart))
        value += float(np.exp(-apart.mean()) if nats else 1 + apart.mean() / whole)
        drawn += np.exp(-(weights @ apart)) if nats else 1 + (weights @ apart) / whole
        if not nats and not apart.any():
            allowed += (1 - 0.05 ** (1 / len(apart))) / whole
    tasks, few = len(pairs), min(len(mine) for _, mine, _ in pairs)
    if few < FEW:
        return Estimate(value / tasks, None, None, few)
    low, high = np.quantile(drawn / tasks, [0.025, 0.975])
    return Estimate(value / tasks, float(low - allowed / tasks), float(high), few)


@lru_cache(maxsize=64)
def _weights(examples: int, task: int) -> Float[np.ndarray, "resamples examples"]:
    """How often each example is drawn, as shares; the same for all policies, so that they are compared on equal draws."""
    rng = np.random.default_rng([examples, task])
    return rng.multinomial(examples, np.full(examples, 1 / examples), size=RESAMPLES) / examples


def front(points: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Names of the points (cost, quality) that no other one beats in either without losing in the other, cheapest first."""
    found, best = [], -np.inf
    for name, (_, value) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if value > best:
            found.append(name)
            best = value
    return tuple(found)
