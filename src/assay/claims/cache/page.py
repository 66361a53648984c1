"""PAGE: one number from the prefill tells the prompts that eviction would harm, and a gate on it keeps their cache whole.

The paper: harm on capacity-bound inputs falls from 0.75 to 0.026; with Mistral-7B SnapKV falls from 99 % to 0 % on multi-key
retrieval, where PAGE keeps 89 %. Here two pools, half of each redundant (facts stated again and again) and half not (every
fact once): texts for Gemma 3 270M, three of whose layers grow, and traces for a small model of two. The question is part of
what is compressed, as in the paper. Harm: the full cache answers and the evicted one does not.

seam: claim
row: D52
source: PAGE (row D52)
object: page
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch

from assay.bench.compare.measure import Bench, Extras
from assay.bench.compare.prompts import Prompt, tokenise
from assay.claims import Evidence, claim
from assay.claims.cache.common import largest_change, policies_named, prompts
from assay.core.attention import visible
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.sites import record
from assay.efficiency.cache.page import agreement, area_under_curve, threshold_of
from assay.tasks import resolve

BASE, GATED = "snapkv", "page(snapkv)"
CALIBRATING = 1000  # seeds from here on are of the prompts that the threshold is taken from
ARMS = (BASE, GATED, "page(snapkv, agreement=cosine)", "recent", "random")


@dataclass(frozen=True)
class Pool:
    """Two tasks, redundant and not, at a length and a budget; `examples` of each task and seed."""

    subject: str
    redundant: str
    single: str
    length: int
    budget: str
    examples: int


GEMMA = Pool("gemma-3-270m", "duplicated(facts=2, copies=8)", "multikey(keys=4)", 600, "0.5", 3)
SMALL = Pool("trace-small(kv_heads=8)", "restated(rho=1.0)", "restated(rho=0.0)", 400, "0.25", 12)


@dataclass(frozen=True)
class Case:
    """One prompt: who answered it, and what could have told. `signals` by name, low where harm is expected."""

    single: bool
    right: dict[str, float]
    signals: dict[str, float]

    @property
    def harmed(self) -> bool:
        return self.right["full"] > self.right[BASE]


@claim("page", row="D52", minutes=20)
def page(e: Evidence) -> None:
    gemma, small = e.model(GEMMA.subject), e.model(SMALL.subject)
    _exact(e, gemma, small)
    judged(e, SMALL, small)
    judged(e, GEMMA, gemma)


def _exact(e: Evidence, gemma, small) -> None:
    prompt = next(prompts(gemma, "needle", examples=1, seed=0, length=300))
    tokens = torch.tensor([prompt.context])
    e.exact("a budget of everything changes no logit", largest_change(gemma, policies_named(GATED), tokens), equals=0.0)
    rows = torch.randint(small.config.vocab_size, (4, 200), generator=torch.Generator().manual_seed(0))
    more = torch.randint(small.config.vocab_size, (4, 20), generator=torch.Generator().manual_seed(1))
    other = torch.randint(small.config.vocab_size, (4, 20), generator=torch.Generator().manual_seed(2))
    base, whole = run(small, BASE, "0.3", rows, more), run(small, BASE, "1", rows, more)
    low, high = (run(small, f"page(snapkv, threshold={t})", "0.3", rows, more) for t in (-2, 2))
    e.exact("below every signal it is the base evictor (largest change of a logit)", change(low, base), equals=0.0)
    e.exact("above every signal it is the full cache (largest change of a logit)", change(high, whole), equals=0.0)
    signals = low[1].policy.signals(low[1].state.growing())
    middle = float(signals.sort().values[1:3].mean())
    first, second = (run(small, f"page(snapkv, threshold={middle})", "0.3", rows, m) for m in (more, other))
    e.exact("what is generated changes no decision", first[1].spared == second[1].spared, equals=True)
    e.exact("sequences of one batch are decided apart", sorted(first[1].spared), equals=[False, False, True, True])
    e.exact(
        "and no signal", float((signals - second[1].policy.signals(second[1].state.growing())).abs().max()), equals=0.0
    )
    moved, alike = [], []
    for seed in e.seeds:
        draw = torch.Generator().manual_seed(seed)
        read = torch.rand(8, 100, generator=draw, dtype=torch.float64)
        order = torch.randperm(8, generator=draw)
        moved += [
            float((agreement(read[order], 0.05, how) - agreement(read, 0.05, how)).abs())
            for how in ("jaccard", "cosine")
        ]
        alike.append(abs(float(agreement(read, 0.05) - agreement(read.flip(0), 0.05))))
    e.exact("the order of heads within a layer does not matter", moved, below=1e-12)
    e.exact("the signal is 0 where early and late layers agree equally", alike, below=1e-12)


@torch.no_grad()
def run(model, policy: str, budget: str, tokens, more):
    state = model.start(len(tokens))
    held = Compression(build(policy, "policy"), budget).attach(state)
    model(tokens, state, logits="none")
    held.finish_prefill()
    rows = []
    for t in range(more.shape[1]):
        rows.append(model(more[:, t : t + 1], state)[0])
        held.hold()
    return torch.cat(rows, 1), held


def change(one, other) -> float:
    return float((one[0] - other[0]).abs().max())


def cases(e: Evidence, pool: Pool, model, seeds: Sequence[int]) -> list[list[Case]]:
    """Of each seed its prompts, redundant and not by turns."""
    found = []
    for seed in e.progress(seeds, f"{pool.redundant} and {pool.single} on {model.name}"):
        both = [list(asked(model, task, pool, seed)) for task in (pool.redundant, pool.single)]
        found.append([one_case(model, p, pool, single=task is both[1]) for task in both for p in task])
    return found


def asked(model, task: str, pool: Pool, seed: int):
    """Its examples as prompts whose whole context is in before anything is dropped, the question included."""
    made = resolve(task)

    def count(text: str) -> int:
        return len(model.tokenizer.encode(text))

    for example in made.examples(pool.examples, seed, pool.length, count):
        yield tokenise(model.tokenizer, example, metric="answer", aware=True)


@torch.no_grad()
def one_case(model, prompt: Prompt, pool: Pool, *, single: bool) -> Case:
    policies = policies_named(*ARMS)
    with record(model, "blocks.*.attn.q", "blocks.*.attn.k") as tape:
        bench = Bench(model, resolve("needle"), prompt, policies)
    right = {"full": bench.measure("full", "1", Extras())["score"]}
    right |= {name: bench.measure(name, pool.budget, Extras())["score"] for name in (BASE, "recent", "random")}
    right["recent, a tenth"] = bench.measure("recent", "0.1", Extras())["score"]
    signals = {"all layers": all_layers(model, tape), "attention entropy": -entropy(model, tape)}
    signals["prompt length"] = -float(len(prompt.context))
    for name in ARMS[1:3]:
        state, held = bench.prefill.fork(name, pool.budget)
        held.finish_prefill()
        signals[name] = float(held.policy.signals(state.growing()))
    return Case(single, right, signals)


def over_layers(model, tape, what: Callable) -> list[float]:
    """A measure of each layer's attention from the last 32 queries to what stands before them, windows included."""
    found = []
    for at, block in enumerate(model.blocks):
        q, k = tape[f"blocks.{at}.attn.q"][0][:, -32:], tape[f"blocks.{at}.attn.k"][0]
        tokens = k.shape[1]
        scores = q @ k.repeat_interleave(len(q) // len(k), 0).mT * block.mixer.scale
        mask = visible(torch.arange(tokens - q.shape[1], tokens), torch.arange(tokens), block.mixer.window)
        found.append(float(what(scores.masked_fill(~mask, -torch.inf).softmax(-1)[..., : tokens - q.shape[1]])))
    return found


def all_layers(model, tape) -> float:
    found = over_layers(model, tape, lambda p: agreement(p.sum(1), 0.05))
    third = max(1, len(found) // 3)
    return fmean(found[:third]) - fmean(found[-third:])


def entropy(model, tape) -> float:
    return fmean(over_layers(model, tape, lambda p: torch.special.entr(p).sum(-1).mean()))


def judged(e: Evidence, pool: Pool, model) -> None:
    where = model.name.partition("(")[0]
    calibrating = cases(e, pool, model, [CALIBRATING + seed for seed in e.seeds[:2]])
    threshold = threshold_of([case.signals[GATED] for seed in calibrating for case in seed])
    found = cases(e, pool, model, e.seeds)
    flat = [case for seed in found for case in seed]
    seen = e.control(
        f"{where}: the full cache answers more prompts than the last tokens alone, a tenth of it",
        [fmean(c.right["full"] - c.right["recent, a tenth"] for c in seed) for seed in found], at_least=0.2,
    )  # fmt: skip
    harm = [fmean(c.harmed for c in seed) for seed in found]
    spread = e.control(
        f"{where}: eviction harms some prompts (a tenth at least) and not all", harm, at_least=0.1, at_most=0.9
    )
    powered = seen and spread
    curve = area(flat, GATED)
    e.expect(
        f"{where}: the area under the curve of the signal for harm is above 0.6", curve, above=0.6,
        interval=bootstrapped(flat, GATED), powered=powered,
    )  # fmt: skip
    gated = [[threshold is not None and c.signals[GATED] < threshold for c in seed] for seed in found]
    saved = [
        fmean(c.harmed and not whole for c, whole in zip(seed, g, strict=True))
        for seed, g in zip(found, gated, strict=True)
    ]
    spared = [fmean(g) for g in gated]
    e.expect(
        f"{where}: with PAGE at most half as many prompts are harmed (harm minus half of the base evictor's)",
        [mine - base / 2 for mine, base in zip(saved, harm, strict=True)], at_most=0.0,
        paper="harm 0.75 -> 0.026 on capacity-bound inputs", powered=powered,
    )  # fmt: skip
    e.expect(f"{where}: and at most 60 % of the prompts keep their whole cache", spared, at_most=0.6, powered=powered)
    e.expect(
        f"{where}: fewer prompts are harmed than under a random gate that spares as many",
        [mine - base * (1 - free) for mine, base, free in zip(saved, harm, spared, strict=True)], below=0.0, powered=powered,
    )  # fmt: skip
    e.report(
        f"{where}: area under the curve by signal, low means harm",
        {name: round(area(flat, name), 3) for name in flat[0].signals},
    )
    e.report(
        f"{where}: threshold of the signal by Otsu from {len(calibrating) * len(calibrating[0])} other prompts",
        threshold,
    )
    e.report(f"{where}: right answers and harm at {pool.budget} kept", [
        {"prompts": task, "n": len(some), **{arm: round(fmean(c.right[arm] for c in some), 3) for arm in some[0].right},
         "harmed": round(fmean(c.harmed for c in some), 3), "signal": round(fmean(c.signals[GATED] for c in some), 3)}
        for task, some in ((pool.redundant, [c for c in flat if not c.single]), (pool.single, [c for c in flat if c.single]))
    ])  # fmt: skip
    e.report(
        f"{where}: harm with PAGE, of the base evictor, share kept whole",
        [round(fmean(x), 3) for x in (saved, harm, spared)],
    )


def area(some: Sequence[Case], signal: str) -> float:
    return area_under_curve([case.signals[signal] for case in some], [case.harmed for case in some])


def bootstrapped(some: Sequence[Case], signal: str, resamples: int = 2000) -> tuple[float, float]:
    """A 95 % percentile interval over prompts."""
    rng = np.random.default_rng(0)
    drawn = [area([some[i] for i in rng.integers(len(some), size=len(some))], signal) for _ in range(resamples)]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return float(low), float(high)
