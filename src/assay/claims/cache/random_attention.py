"""Random Attention: once the prompt is safe, a random draw of generated tokens is as good as a score.

The paper: matches the strongest evictor on four models and six reasoning tasks; most of the gap between selectors is whether the
prompt survived; the trace protects itself by restating values and by a copy in every head. Here small models with 1 to 8 key-value
heads track variables through traces that restate values at a rate rho.

seam: claim
row: D21
source: Random Attention (row D21)
object: random_attention
"""

from __future__ import annotations

from statistics import fmean

import torch

from assay.claims import Evidence, claim
from assay.claims.cache.common import Scores, grid, largest_change, policies_named
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.state import AttentionState, ModelState
from assay.core.store import Store
from assay.tasks.statistics import chi_square_uniform

QUARTER = "0.25"
ARMS = (
    "random_attention",
    "random_attention(draw=fresh)",
    "random",
    "snapkv",
    "snapkv(prompt=True)",
    "h2o",
    "h2o(prompt=True)",
    "keydiff(prompt=True)",
    "recent",
    "recent(prompt=True)",
)
RATES = (0.0, 0.25, 0.5, 1.0)
HEADS = (1, 2, 4, 8)
LENGTH, EXAMPLES = 400, 20


@claim("random_attention", row="D21", minutes=25)
def random_attention(e: Evidence) -> None:
    models = {heads: e.model(f"trace-small(kv_heads={heads})") for heads in HEADS}
    _exact(e, models[4])
    by_rate = {
        rate: grid(e, models[8], f"restated(rho={rate})", policies_named(*ARMS), (QUARTER,), examples=EXAMPLES, length=LENGTH)
        for rate in RATES
    }
    by_heads = {
        heads: grid(
            e, models[heads], "restated(rho=0.25)", policies_named("random_attention", "random"), (QUARTER,),
            examples=EXAMPLES, length=LENGTH,
        )
        for heads in HEADS
    }  # fmt: skip
    selectors(e, by_rate[0.25]["score"])
    redundancy(e, {r: f["score"] for r, f in by_rate.items()}, {h: f["score"] for h, f in by_heads.items()})
    for rate, found in by_rate.items():
        e.report(f"right answers at a quarter kept, 8 heads, rho={rate}", found["score"].table())
    on_gemma(e)


def selectors(e: Evidence, scores: Scores) -> None:
    """What protecting the prompt is worth, with little restated."""
    solved = e.control(
        "the full cache answers and a quarter kept by recency alone does not",
        scores.gain("full", "recent", "1", QUARTER), at_least=0.3,
    )  # fmt: skip
    gap = scores.gain("random_attention", "snapkv", QUARTER)
    closed = scores.gain("snapkv(prompt=True)", "snapkv", QUARTER)
    e.expect("Random Attention answers more than SnapKV without prompt protection", gap, above=0.0, powered=solved)
    e.expect(
        "protecting the prompt closes at least half of that gap (closed minus half of the gap)",
        [c - g / 2 for c, g in zip(closed, gap, strict=True)], at_least=0.0,
        paper="most of the difference between selectors is whether the prompt survives", powered=solved,
    )  # fmt: skip
    e.expect(
        "a random draw that does not spare the prompt loses",
        scores.gain("random", "random_attention", QUARTER), below=0.0, powered=solved,
    )  # fmt: skip
    best = max((a for a in ARMS if "prompt=True" in a), key=lambda a: fmean(scores.per_seed(a, QUARTER)))
    e.expect(
        "Random Attention is within 5 points of the best selector that spares the prompt",
        scores.gain("random_attention", best, QUARTER), at_least=-0.05, paper="matches the strongest prior evictor", powered=solved,
    )  # fmt: skip


def redundancy(e: Evidence, by_rate: dict[float, Scores], by_heads: dict[int, Scores]) -> None:
    """Copies in the text and copies in the heads."""
    low, high = by_rate[min(by_rate)], by_rate[max(by_rate)]
    solved = e.control(
        "without restatements the full cache answers and a random quarter that spares the prompt loses some",
        low.gain("full", "random_attention", "1", QUARTER), above=0.05,
    )  # fmt: skip
    pairs = zip(high.per_seed("random_attention", QUARTER), low.per_seed("random_attention", QUARTER), strict=True)
    e.expect("accuracy rises with the rate of restatements (rho 1 minus rho 0)", [h - lo for h, lo in pairs], above=0.0, powered=solved)
    pairs = zip(*(by_heads[h].per_seed("random_attention", QUARTER) for h in (max(by_heads), min(by_heads))), strict=True)
    e.expect("accuracy rises with the number of key-value heads (8 minus 1)", [m - f for m, f in pairs], above=0.0, powered=solved)
    e.report(
        "right answers of Random Attention at a quarter, by key-value heads",
        {heads: round(fmean(s.per_seed("random_attention", QUARTER)), 3) for heads, s in by_heads.items()},
    )
    e.report("right answers with the full cache, by key-value heads", {
        heads: round(fmean(s.per_seed("full", "1")), 3) for heads, s in by_heads.items()
    })  # fmt: skip


def _exact(e: Evidence, model) -> None:
    tokens = torch.randint(model.config.vocab_size, (1, 200), generator=torch.Generator().manual_seed(0))
    e.exact("a budget of everything changes no logit", largest_change(model, policies_named("random_attention"), tokens), equals=0.0)

    prompt, length, heads, recent = 40, 400, 4, 32
    kept = torch.zeros(length, dtype=torch.long)
    somewhere = torch.zeros(length, dtype=torch.long)
    spared, runs = [], 60
    for seed in range(runs):
        state = grown(prompt, length, heads, seed)
        flat = state.store.flat()
        spared.append(all(bool((flat.positions[flat.owner == h][:prompt] == torch.arange(prompt)).all()) for h in range(heads)))
        kept += torch.bincount(flat.positions.long(), minlength=length)
        somewhere += torch.bincount(flat.positions.long().unique(), minlength=length)
    e.exact("the prompt is always kept, in every head", all(spared), equals=True)
    # tokens that came after the last compaction, and those that were recent at it, were not drawn yet
    drawn = slice(prompt, length - recent - Compression(build("full", "policy"), "1").slack)
    frequency = float(kept[drawn].double().mean()) / (runs * heads)
    wanted = 1 - (1 - frequency) ** heads
    tries = runs * (drawn.stop - drawn.start)
    seen = float(somewhere[drawn].sum()) / tries
    spread = (wanted * (1 - wanted) / tries) ** 0.5
    e.exact(
        "a token kept with frequency f in each of H heads survives somewhere with probability 1-(1-f)^H (in standard errors)",
        abs(seen - wanted) / spread, at_most=3.0,
    )  # fmt: skip
    # counts of 4 x 60 draws are binomial, not Poisson: bring their spread to what the test expects
    share = kept[drawn].double()
    scaled = (share - share.mean()) / (1 - frequency) ** 0.5 + share.mean()
    e.exact(
        "retention is uniform over generated positions (p of a chi-square test)",
        chi_square_uniform(scaled.tolist())[1], at_least=0.001,
    )  # fmt: skip


class Growing:
    """A state of one layer, fed without a model: what the driver needs of a running model."""

    def __init__(self, heads: int) -> None:
        self.layer = AttentionState(1, heads)
        self.model = ModelState([self.layer])

    @property
    def store(self) -> Store:
        return self.layer.store

    def feed(self, tokens: int) -> None:
        heads = self.store.kv_heads
        at = int(self.layer.seen[0]) + torch.arange(tokens)[None]
        zeros = torch.zeros(1, heads, tokens, 2)
        self.store.append(zeros, zeros, positions=at)
        self.layer.advance(tokens, None)


def grown(prompt: int, length: int, heads: int, seed: int, budget: int = 150) -> Growing:
    """A prompt, then one token after another, held to a budget all the while."""
    state = Growing(heads)
    policy = build(f"random_attention(seed={seed})", "policy")
    held = Compression(policy, f"{budget}tok").attach(state.model)
    state.feed(prompt)
    held.finish_prefill()
    for _ in range(length - prompt):
        state.feed(1)
        held.hold()
    return state


def on_gemma(e: Evidence) -> None:
    """One key-value head a layer: no redundancy across heads, so this is shown and not judged."""
    arms = policies_named("random_attention", "random", "snapkv", "snapkv(prompt=True)")
    found = grid(e, e.model("gemma-3-270m"), "restated(rho=0.5)", arms, ("0.5",), examples=2, length=700)
    e.report("Gemma on traces (rho 0.5), half kept: right answers", found["score"].table())
    e.report("Gemma on traces (rho 0.5), half kept: log-probability of the right answer", found["logprob"].table())
