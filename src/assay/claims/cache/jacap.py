"""Jacap: leverage weighed by the softmax's slope keeps what attention's output depends on, most of all of small caches.

The paper: ahead of existing policies in most settings, most clearly at high compression. Gemma 3 270M has one key-value head
in each of its three growing layers; `recall-small` has four, and a quarter of its 400 tokens is the least that leaves more
than pins. The question is part of what is compressed, as where benchmarks ask at the end of a prompt, so that the observed
queries are the question's.

seam: claim
row: D07
source: Jacap (row D07)
object: jacap
"""

from __future__ import annotations

from statistics import fmean

import torch

from assay.claims import Evidence, claim
from assay.claims.cache.common import grid, largest_change, output_errors, policies_named, prompts
from assay.efficiency.cache.jacap import jacobian, sensitive
from assay.efficiency.cache.leverage import capacity, effective_dimension, leverage, ridge_of

ARMS = ("jacap", "jacap(values=True)", "capkv", "snapkv", "h2o", "keydiff", "recent", "random")
EIGHTH, QUARTER = "0.125", "0.25"
GEMMA, SMALL = 1000, 400  # tokens
NEEDLES, RECALLS = 2, 8  # examples a seed


@claim("jacap", row="D07", minutes=15)
def jacap(e: Evidence) -> None:
    gemma, small = e.model("gemma-3-270m"), e.model("recall-small")
    _exact(e, gemma)
    on_small(e, small)
    on_gemma(e, gemma)


def _exact(e: Evidence, model) -> None:
    tokens = torch.tensor([next(prompts(model, "needle", examples=1, seed=0, length=400)).context])
    e.exact(
        "a budget of everything changes no logit", largest_change(model, policies_named("jacap"), tokens), equals=0.0
    )
    closed, sums, dimensions, returns, growth = [], [], [], [], []
    for seed in e.seeds:
        draw = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((16,), (50, 16), (50, 12)))
        wanted = torch.autograd.functional.jacobian(lambda query, k=k, v=v: (k @ query * 0.25).softmax(0) @ v, q)
        closed.append(float((jacobian(q, k, v, 0.25) - wanted).abs().max()))
        x = sensitive((k @ q * 0.25).softmax(0)[None, None], k[None])[0, 0]
        ridge = ridge_of(x, 0.01)
        sums.append(float((leverage(x, ridge).sum() - effective_dimension(x, ridge)).abs()))
        dimensions.append(float(leverage(x, ridge).sum()))
        for _ in range(20):
            order = torch.randperm(50, generator=draw)
            few, many, one = x[order[:8]], x[order[:30]], x[order[40:41]]
            small, large = (float(capacity(torch.cat([s, one]), 1e-3) - capacity(s, 1e-3)) for s in (few, many))
            growth.append(min(small, large))
            returns.append(small - large)
    e.exact("the closed form of the Jacobian is autograd's", closed, below=1e-6)
    e.exact("leverage scores add up to the effective dimension", sums, below=1e-9)
    e.exact("which is no more than the dimension of a head (16)", dimensions, at_most=16.0)
    e.exact("a further token never lowers the capacity", growth, at_least=-1e-12)
    e.exact("and adds no more to a larger set than to a smaller one within it", returns, at_least=-1e-12)


def errors(e: Evidence, model, task: str, length: int, examples: int, kept: str) -> dict[tuple[str, str], list[float]]:
    """Of each arm and budget the mean error of attention's output, by seed."""
    found: dict[tuple[str, str], list[float]] = {}
    for seed in e.progress(e.seeds, f"attention's output on {model.name}"):
        rows = []
        for number, prompt in enumerate(prompts(model, task, examples=examples, seed=seed, length=length, aware=True)):
            arms = policies_named(*ARMS)
            for policy in arms.values():
                policy.reseed(seed * 1009 + number)
            rows.append(output_errors(model, prompt, arms, ("0.75", kept)))
        for arm in rows[0]:
            found.setdefault(arm, []).append(fmean(row[arm] for row in rows))
    return found


def judged(e: Evidence, where: str, found: dict[tuple[str, str], list[float]], kept: str) -> None:
    def less(mine: tuple[str, str], other: tuple[str, str]) -> list[float]:
        return [b - a for a, b in zip(found[mine], found[other], strict=True)]

    powered = e.control(
        f"{where}: attention's output is nearer with three quarters kept at random than with {kept}",
        less(("random", "0.75"), ("random", kept)), above=0.0,
    )  # fmt: skip
    for other, paper in (("random", None), ("capkv", "beats existing policies in most settings")):
        e.expect(
            f"{where}: with {kept} kept, Jacap's error of attention's output is below that of {other} (difference)",
            less(("jacap", kept), (other, kept)), above=0.0, paper=paper, powered=powered,
        )  # fmt: skip
    e.report(f"{where}: relative error of attention's output", [
        {"policy": policy, "kept": budget, "error": round(fmean(values), 4)} for (policy, budget), values in found.items()
    ])  # fmt: skip


def right(e: Evidence, where: str, found) -> None:
    powered = e.control(
        f"{where}: the full cache answers more than the last tokens alone (a quarter)",
        found["score"].gain("full", "recent", "1", QUARTER), at_least=0.2,
    )  # fmt: skip
    e.expect(
        f"{where}: a quarter kept by Jacap answers at least 10 points more than a random quarter",
        found["score"].gain("jacap", "random", QUARTER), at_least=0.1, powered=powered,
    )  # fmt: skip
    e.report(f"{where}: right answers", found["score"].table())
    e.report(f"{where}: log-probability of the right answer", found["logprob"].table())


def on_small(e: Evidence, model) -> None:
    judged(e, "recall-small", errors(e, model, "recall", SMALL, RECALLS, QUARTER), QUARTER)
    budgets = (QUARTER, EIGHTH)
    right(
        e,
        "recall-small",
        grid(e, model, "recall", policies_named(*ARMS), budgets, examples=RECALLS, length=SMALL, aware=True),
    )


def on_gemma(e: Evidence, model) -> None:
    judged(e, "Gemma", errors(e, model, "needle", GEMMA, 1, EIGHTH), EIGHTH)
    right(
        e,
        "Gemma",
        grid(e, model, "needle", policies_named(*ARMS), (QUARTER,), examples=NEEDLES, length=GEMMA, aware=True),
    )
