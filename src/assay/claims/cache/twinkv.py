"""TwinKV: swapping kept twins for dropped tokens that have none improves most policies at the same budget.

The paper: a token's attention is unrelated to what masking it does to the answer (Spearman -0.004); the repair improves most
configurations of two of four policies on Qwen3-4B; few-shot classification does not gain.

seam: claim
row: D51
source: TwinKV (row D51)
object: twinkv
"""

from __future__ import annotations

from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.claims import Evidence, claim
from assay.claims.cache.common import grid, largest_change, policies_named, prompts
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import Wrapper
from assay.efficiency.cache.twinkv import repair
from assay.tasks.statistics import spearman

BASES = ("snapkv", "h2o", "keydiff", "knorm")
BUDGETS = ("0.7", "0.5", "0.3")
TASKS = ("multikey", "duplicated", "multi_value", "documents")
LENGTH, EXAMPLES, FEW_SHOT = 1024, 2, 10  # two few-shot examples a seed could not see what is known to differ


class RandomSwaps(Wrapper):
    """The dull baseline: as many swaps as the repair may make, of tokens drawn at random."""

    def __init__(self, inner: Policy, cap: float = 0.1, seed: int = 0) -> None:
        super().__init__(inner)
        self.cap, self.draw = cap, torch.Generator().manual_seed(seed)

    def keep(
        self, layer: int, store: Store, scores: Float[Tensor, "stored"], budget: Int[Tensor, "owners"]
    ) -> Int[Tensor, "kept"]:
        chosen = self.inner.keep(layer, store, scores, budget)
        held = torch.zeros(len(scores), dtype=torch.bool)
        held[chosen] = True
        owner = store.flat().owner
        for one in range(store.owners):
            donors = (held & (owner == one) & ~scores.isinf()).nonzero()[:, 0]
            dropped = (~held & (owner == one)).nonzero()[:, 0]
            swaps = min(int(self.cap * int(budget[one])), len(donors), len(dropped))
            held[donors[torch.randperm(len(donors), generator=self.draw)[:swaps]]] = False
            held[dropped[torch.randperm(len(dropped), generator=self.draw)[:swaps]]] = True
        return held.nonzero()[:, 0]


@claim("twinkv", row="D51", minutes=20)
def twinkv(e: Evidence) -> None:
    gemma = e.model("gemma-3-270m")
    _exact(e, gemma)
    coverage(e)
    deltas(e, gemma)
    few_shot(e, gemma)
    leave_one_out(e, gemma)


def _exact(e: Evidence, model) -> None:
    prompt = next(prompts(model, "needle", examples=1, seed=0, length=400))
    tokens = torch.tensor([prompt.context])
    e.exact("a budget of everything changes no logit", largest_change(model, policies_named("twinkv(snapkv)"), tokens), equals=0.0)
    sizes, orphans, donors, untouched = [], [], [], []
    for seed in e.seeds:
        keys, kept, present, pinned = drawn(seed)
        most = torch.full((len(keys),), 20)
        result = repair(keys, kept, present, pinned, most, 0.9)
        sizes.append(bool((result.kept.sum(1) == kept.sum(1)).all()))
        count, given = orphaned(keys, kept, present), []
        now = kept.clone()
        for owner, taken, gone in result.swaps:
            now[owner, taken], now[owner, gone] = True, False
            given.append((owner, gone))
            after = orphaned(keys, now, present)
            orphans.append(int(after.sum()) <= int(count.sum()))
            donors.append(not any(bool(after[o, g]) for o, g in given))
            count = after
        untouched.append(bool((repair(keys, kept, present, pinned, most, 1.01).kept == kept).all()))
        untouched.append(bool((repair(keys, kept, present, pinned, most * 0, 0.9).kept == kept).all()))
    e.exact("the kept set keeps its size", all(sizes), equals=True)
    e.exact("there were swaps to check", len(orphans), at_least=10)
    e.exact("no swap adds an orphan", all(orphans), equals=True)
    e.exact("no donor becomes an orphan", all(donors), equals=True)
    e.exact("a threshold above 1 or a cap of 0 changes nothing", all(untouched), equals=True)


def drawn(seed: int, owners: int = 2, classes: int = 60, copies: int = 3, dim: int = 24) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit keys in classes of twins, and a kept set that loves duplicates: whole classes are kept or dropped."""
    draw = torch.Generator().manual_seed(seed)
    heart = torch.randn(owners, classes, 1, dim, generator=draw, dtype=torch.float64)
    keys = heart + 0.1 * torch.randn(owners, classes, copies, dim, generator=draw, dtype=torch.float64)
    keys = torch.nn.functional.normalize(keys.flatten(1, 2), dim=-1)
    kept = (torch.rand(owners, classes, 1, generator=draw) < 0.4).expand(-1, -1, copies).flatten(1)
    return keys, kept, torch.ones_like(kept), torch.zeros_like(kept)


def orphaned(keys: Tensor, kept: Tensor, present: Tensor, threshold: float = 0.9) -> Tensor:
    """Dropped tokens without a kept twin, by the definition, all at once."""
    near = (keys @ keys.mT).masked_fill(~kept[:, None], -2.0).amax(-1)
    return present & ~kept & (near < threshold)


def coverage(e: Evidence) -> None:
    """Facts stated twice: how many distinct ones a kept set still holds, before and after the repair."""
    never_worse, gains = [], []
    for seed in e.seeds:
        for part in range(20):
            keys, kept, present, pinned = drawn(seed * 100 + part, copies=2)
            before = covered(kept)
            after = covered(repair(keys, kept, present, pinned, torch.full((len(keys),), 12), 0.9).kept)
            never_worse.append(after >= before)
            gains.append(after - before)
    e.exact("coverage of distinct facts never falls", all(never_worse), equals=True)
    e.control("a score that keeps both copies of a fact leaves coverage to gain", gains, above=0.0)


def covered(kept: Tensor, copies: int = 2) -> float:
    return float(kept.unflatten(1, (-1, copies)).any(-1).float().mean())


def deltas(e: Evidence, model) -> None:
    """What the repair adds to four policies at three ratios, and what random swaps add."""
    policies = policies_named(*BASES, "random", *(f"twinkv({base})" for base in BASES))
    policies |= {f"random swaps({base})": RandomSwaps(build(base, "policy")) for base in BASES}
    better, table = 0, []
    control = None
    for task in TASKS:
        found = grid(e, model, task, policies, BUDGETS, examples=EXAMPLES, length=LENGTH)
        if control is None:
            control = e.control(
                "the full cache gives the right answer more log-probability than a random 30 %",
                found["logprob"].gain("full", "random", "1", "0.3"), above=0.5,
            )  # fmt: skip
        for base in BASES:
            for budget in BUDGETS:
                twin, swaps = (found["logprob"].gain(f"{w}({base})", base, budget) for w in ("twinkv", "random swaps"))
                right = fmean(found["score"].gain(f"twinkv({base})", base, budget))
                better += fmean(twin) > 0
                table.append(
                    {"task": task, "base": base, "kept": budget, "log-probability gained": round(fmean(twin), 3),
                     "by random swaps": round(fmean(swaps), 3), "right answers gained": round(right, 3)}
                )  # fmt: skip
    e.report("what the repair adds on Gemma", table)
    total = len(table)
    e.expect(
        "the repair raises the right answer's log-probability in most configurations",
        better / total, at_least=0.5, paper="a majority of configurations for two of four policies", powered=control,
        interval=_wilson(better, total),
    )  # fmt: skip


def _wilson(successes: int, total: int) -> tuple[float, float]:
    from assay.tasks.statistics import wilson_interval

    found = wilson_interval(successes, total)
    return found.low, found.high


def few_shot(e: Evidence, model) -> None:
    arms = policies_named("random", *BASES, *(f"twinkv({b})" for b in BASES))
    found = grid(e, model, "fewshot(signs=True)", arms, ("0.3",), examples=FEW_SHOT, length=600)
    least = grid(e, model, "fewshot(signs=True)", policies_named("recent"), ("40tok",), examples=FEW_SHOT, length=600)
    gains = [found["logprob"].gain(f"twinkv({base})", base, "0.3") for base in BASES]
    mean = [fmean(seed) for seed in zip(*gains, strict=True)]
    powered = e.control(
        "few-shot labels are likelier with the full cache than with the last exemplars alone (40 tokens)",
        least["logprob"].gain("full", "recent", "1", "40tok"), above=0.0,
    )  # fmt: skip
    e.expect(
        "few-shot classification gains nothing: at most 0.1 nats",
        mean, at_most=0.1, paper="does not help few-shot exemplars", powered=powered,
    )  # fmt: skip
    e.report("few-shot: log-probability of the label", found["logprob"].table())


@torch.no_grad()
def leave_one_out(e: Evidence, model, probes: int = 40) -> None:
    """Mask one token in the global layers: what the answer loses, against the attention that the token got."""
    correlations, contrast = [], []
    for seed in e.seeds:
        prompt = next(prompts(model, "needle", examples=1, seed=seed, length=300))
        state = model.start(1)
        held = Compression(build("h2o", "policy"), "1").attach(state)
        model(torch.tensor([prompt.context]), state, logits="none")
        received = sum(held.policy.score(layer, store) for layer, store in state.growing().items())
        tail = torch.tensor([[*prompt.question, *prompt.answer]])
        whole = _logprob(model, state.fork(), tail, len(prompt.answer))
        draw = torch.Generator().manual_seed(seed)
        spans = [t for a, b in prompt.spans for t in range(a, b)]
        at = torch.randperm(len(prompt.context), generator=draw)[:probes].tolist() + spans
        lost = []
        for token in at:
            fork = state.fork()
            for store in fork.growing().values():
                store.keep((store.flat().positions != token).nonzero()[:, 0])
            lost.append(whole - _logprob(model, fork, tail, len(prompt.answer)))
        correlations.append(spearman(received[at].tolist(), lost).value)
        contrast.append(fmean(lost[-len(spans) :]) - fmean(lost[: -len(spans)]))
    powered = e.control("masking a token of the answer loses more than masking another", contrast, above=0.0)
    e.expect(
        "attention received says little about what masking a token does: Spearman within 0.3 of zero",
        correlations, at_least=-0.3, at_most=0.3, paper=-0.004, powered=powered,
    )  # fmt: skip
    e.report("leave-one-out Spearman by seed", correlations)


def _logprob(model, state, tail: Int[Tensor, "1 tokens"], answer: int) -> float:
    logits, _ = model(tail, state)
    return float(logits[0, -answer - 1 : -1].log_softmax(-1).gather(1, tail[0, -answer:, None]).sum())
