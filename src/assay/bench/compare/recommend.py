"""Which policy to deploy: the smallest cache whose measured loss is allowed on every task that says something."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from assay.report.summary import Recommendation, Row, TaskSummary


def loss(row: Row, full: Row) -> float:
    """Relative to full on the same examples: the share of its right answers that are lost, or the rise of perplexity.

    Negative: a gain.
    """
    lost = -row.against_full.mean if row.against_full else math.inf
    return math.expm1(min(lost, 700.0)) if row.measure == "nll" else lost / full.quality.mean


def possible_loss(row: Row, full: Row) -> float | None:
    """The largest loss that the paired interval does not exclude, or None where examples were too few for one."""
    if row.against_full is None or row.against_full.low is None:
        return None
    worst = -row.against_full.low
    if row.measure == "nll":
        return math.expm1(worst)
    if (
        row.against_full.identical
    ):  # n equal pairs do not exclude that up to this share of pairs differs (95%, one-sided)
        worst = 1 - 0.05 ** (1 / row.against_full.examples)
    return worst / full.quality.mean


def recommend(
    run: Mapping[str, Any], tasks: Sequence[TaskSummary], *, max_loss: float = 0.01, max_bytes: float = 1.0
) -> Recommendation:
    """`max_loss`: relative, on every task; `max_bytes`: as a share of the full cache's bytes over all layers."""
    limits = f"a loss of at most {100 * max_loss:g}% on every task"
    if max_bytes < 1:
        limits += f" and at most {100 * max_bytes:g}% of the bytes"
    telling = [t for t in tasks if not t.says_nothing and t.full is not None]
    if not telling:
        return Recommendation(max_loss, max_bytes, None, "No task here says anything, so nothing is recommended.")
    candidates = {}
    for name in dict.fromkeys(r.name for t in telling for r in t.rows):
        pairs = [(r, t.full) for t in telling for r in t.rows if r.name == name]
        if len(pairs) == len(telling):
            candidates[name] = pairs
    allowed = {
        name: pairs
        for name, pairs in candidates.items()
        if all(loss(r, f) <= max_loss + 1e-12 for r, f in pairs)
        and _share(pairs) <= max_bytes + 1e-12
        and _share(pairs) < 1
    }
    if not allowed:
        return Recommendation(
            max_loss, max_bytes, None, f"Nothing measured here has {limits}.{_closest(candidates, max_bytes)}"
        )
    # bytes within one percent of each other are the same saving; then the smaller loss decides
    smallest = min(map(_share, allowed.values()))
    near = {name: pairs for name, pairs in allowed.items() if _share(pairs) <= smallest * 1.01}
    winner = min(near, key=lambda name: (max(loss(r, f) for r, f in near[name]), _share(near[name])))
    return Recommendation(
        max_loss,
        max_bytes,
        winner,
        _says(winner, allowed[winner], limits),
        _code(run, [row for row, _ in allowed[winner]]),
    )


def _share(pairs: Sequence[tuple[Row, Row]]) -> float:
    return sum(r.share for r, _ in pairs) / len(pairs)


def _says(name: str, pairs: Sequence[tuple[Row, Row]], limits: str) -> str:
    row, full = max(pairs, key=lambda pair: loss(*pair))
    worst = loss(row, full)
    lost = f"loses at most {worst:.1%} ({row.task})" if worst > 0 else "loses nothing measured"
    text = f"{name} holds {_share(pairs):.0%} of the full cache's bytes and {lost}: the smallest cache with {limits}."
    bounds = [possible_loss(r, f) for r, f in pairs]
    if None in bounds:
        few = min(r.quality.examples for r, _ in pairs)
        return f"On only {few} example{'s' * (few != 1)} a task, too few to exclude any loss: {text}"
    bound = max(b for b in bounds if b is not None)
    return (
        f"{text} The intervals do not exclude a loss of {bound:.1%}; more examples narrow that." if bound > 0 else text
    )


def _closest(candidates: Mapping[str, Sequence[tuple[Row, Row]]], max_bytes: float) -> str:
    within = {name: pairs for name, pairs in candidates.items() if _share(pairs) <= max_bytes}
    if not within:
        return ""
    name = min(within, key=lambda n: max(loss(r, f) for r, f in within[n]))
    row, full = max(within[name], key=lambda pair: loss(*pair))
    return f" Closest: {name}, which loses {loss(row, full):.1%} on {row.task} and holds {_share(within[name]):.0%} of the bytes."


def _code(run: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The line that deploys it. A share of bytes becomes the bytes that it came to on the longest of these contexts."""
    winner = max(rows, key=lambda row: row.bytes_full_eligible)
    fixed, cache = run.get("fixed", {}), winner.name
    if winner.policy.startswith("full+"):
        cache = winner.policy
    elif fixed.get("match") == "bytes" and "B" not in winner.budget:
        cache = f"{winner.policy}@{int(float(winner.budget) * winner.bytes_full_eligible)}B"
    also = f", prefill_chunk={fixed['chunk']}" if fixed.get("chunk") else ""
    return f'assay.load("{fixed.get("model", "MODEL")}").generate(prompt, cache="{cache}"{also})'
