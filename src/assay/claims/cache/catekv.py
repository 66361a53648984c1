"""CateKV: some heads go on reading the same tokens; keeping little of those and all of the others costs least.

The paper: up to 2.72 times less memory and 2.18 times faster decoding at the accuracy of full attention. Here: is the split the
same from two texts (18 x 4 query heads of Gemma 3 270M, windows included), and at equal mean cache, is attention's output nearer
than with a random split or with as much of every head? Small models of two layers with 4 and 8 key-value heads, split by a text
of its own.

seam: claim
row: D47
source: CateKV (row D47)
object: catekv
"""

from __future__ import annotations

from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from assay.claims import Evidence, claim
from assay.claims.cache.common import Policies, grid, largest_change, output_errors, policies_named, prompts
from assay.core.attention import visible
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.sites import record
from assay.efficiency.cache.catekv import consistent_heads, masses, variation
from assay.tasks.text import corpus

WINDOW, STEPS, SELECTED, MEAN = 16, 8, 0.05, 0.5  # as in the part
WORDS = 330  # of a calibration text for Gemma, all within its layers' window of 512 tokens
EXAMPLES = 5  # prompts of a seed
CALIBRATING = 1000  # seeds from here on are of calibration texts
MODELS = {"trace-small(kv_heads=8)": ("restated(rho=0.25)", 400), "recall-small": ("recall", 400)}
PLAIN = ("snapkv", "h2o", "recent", "random")


@claim("catekv", row="D47", minutes=2)
def catekv(e: Evidence) -> None:
    gemma = e.model("gemma-3-270m")
    _exact(e, e.model("recall-small"))
    for name, (task, length) in MODELS.items():
        errors(e, e.model(name), task, length)
    stability(e, gemma)
    needles(e, gemma)


@torch.no_grad()
def _exact(e: Evidence, model) -> None:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (1, 512), generator=draw)
    change = largest_change(model, policies_named("catekv(snapkv, share=0)", "catekv(snapkv)"), tokens[:, :200])
    e.exact("no consistent heads and a whole budget, or any split of it, are full attention", change, equals=0.0)
    plain, none = (compressed(model, p, "0.4", tokens)[0] for p in ("snapkv", "catekv(snapkv, share=0)"))
    same = [torch.equal(a.flat().positions, b.flat().positions) for a, b in pairs(plain, none)]
    e.exact("with no consistent heads the wrapped policy is unchanged at a smaller budget", all(same), equals=True)
    for says, high, low in (("with fixed mass on a set has", 0.7, 0.7), ("that alternates has", 0.8, 0.2)):
        mass = torch.tensor([high, low] * 6, dtype=torch.float64)
        wanted = (high - low) / (high + low)
        e.exact(f"a head {says} CV = |a - b| / (a + b) = {wanted:g}", abs(float(variation(mass)) - wanted), below=1e-12)
    split = [[0, 1], [0, 2], [1, 0], [1, 3]]
    state, _ = compressed(model, f"catekv(snapkv, consistent={split})", "0.625", tokens)
    sizes = [
        sum(s.arrays[n].untyped_storage().nbytes() for n in ("k", "v", "positions")) for s in state.growing().values()
    ]
    heads, dim = 4, model.blocks[0].mixer.head_dim
    tokens_held = [(2 * 512 + 2 * 128)] * len(sizes)  # adaptive heads whole; (0.625 - 0.5) / 0.5 of the others
    wanted_bytes = [t * (2 * dim * 4 + 4) for t in tokens_held]
    e.exact(
        "bytes held are those of the formula: whole adaptive heads, the rest of the budget for the others",
        sizes,
        equals=wanted_bytes,
    )
    e.exact(
        "in a store of four heads a layer", [s.kv_heads for s in state.growing().values()], equals=[heads] * len(sizes)
    )


def pairs(one, other):
    return zip(one.growing().values(), other.growing().values(), strict=True)


def compressed(model, policy: str, budget: str, tokens: Tensor):
    state = model.start(len(tokens))
    held = Compression(build(policy, "policy"), budget).attach(state)
    model(tokens, state, logits="none")
    held.finish_prefill()
    return state, held


def arms_of(model, task: str, length: int, seed: int) -> Policies:
    """The split of a text of its own, a random split of as many heads, and policies that treat heads alike.

    The split is by CV alone: no head of these models gives half of its attention to a twentieth of the tokens.
    """
    text = next(prompts(model, task, examples=1, seed=CALIBRATING + seed, length=length, aware=True))
    split = consistent_heads(
        model, torch.tensor([text.context]), window=WINDOW, steps=STEPS, selected=SELECTED, mean=0.0
    )
    heads = [(layer, head) for layer, store in model.start(1).growing().items() for head in range(store.kv_heads)]
    drawn = np.random.default_rng(seed).permutation(len(heads))[: len(split)]
    policies = policies_named(*PLAIN)
    for name, chosen in (("by CV", split), ("at random", [heads[i] for i in drawn])):
        policies |= {f"catekv, {name}": build(f"catekv(snapkv, consistent={[list(h) for h in chosen]})", "policy")}
    streaming = (
        f"catekv(recent, consistent={[list(h) for h in split]})"  # consistent heads keep sinks and the last tokens
    )
    return policies | {"catekv, by CV, streaming": build(streaming, "policy")}


def errors(e: Evidence, model, task: str, length: int) -> None:
    found: dict[tuple[str, str], list[float]] = {}
    splits = []
    for seed in e.progress(e.seeds, f"attention's output on {model.name}"):
        arms, rows = arms_of(model, task, length, seed), []
        splits.append(sorted(arms["catekv, by CV"].consistent))
        for number, prompt in enumerate(prompts(model, task, examples=EXAMPLES, seed=seed, length=length, aware=True)):
            for policy in arms.values():
                policy.reseed(seed * 1009 + number)
            rows.append(output_errors(model, prompt, arms, ("0.9", "0.6", "0.25")))
        for arm in rows[0]:
            found.setdefault(arm, []).append(fmean(row[arm] for row in rows))

    def less(mine: tuple[str, str], other: tuple[str, str]) -> list[float]:
        return [b - a for a, b in zip(found[mine], found[other], strict=True)]

    where = model.name.partition("(")[0]
    powered = e.control(
        f"{where}: attention's output is nearer with nine tenths kept at random than with a quarter",
        less(("random", "0.9"), ("random", "0.25")), above=0.0,
    )  # fmt: skip
    for other, says in (
        ("catekv, at random", "than with a random split"),
        ("snapkv", "than with SnapKV alike in all heads"),
    ):
        e.expect(
            f"{where}: with six tenths kept on average, the error of attention's output is lower by CV {says} (difference)",
            less(("catekv, by CV", "0.6"), (other, "0.6")), above=0.0,
            paper="accuracy of full attention at 2.72 times less memory", powered=powered,
        )  # fmt: skip
    heads = sum(store.kv_heads for store in model.start(1).growing().values())
    e.exact(
        f"{where}: half of the heads are consistent in every split",
        [len(s) for s in splits],
        equals=[heads // 2] * len(splits),
    )
    e.report(f"{where}: consistent heads by seed (layer, head)", splits)
    e.report(f"{where}: relative error of attention's output", [
        {"policy": policy, "kept": budget, "error": round(fmean(values), 4)} for (policy, budget), values in found.items()
    ])  # fmt: skip


@torch.no_grad()
def stability(e: Evidence, model) -> None:
    """Labels of all query heads of Gemma from two texts that share nothing."""
    together, apart, labels, alone = [], [], [], []
    text = corpus("english")
    for seed in e.progress(e.seeds, "calibration texts"):
        rng = np.random.default_rng(seed)
        first = int(rng.integers(len(text) // 2 - WORDS))
        found = [variations(model, text.passage(at, WORDS)) for at in (first, first + len(text) // 2)]
        both, by_cv = ([labelled(one[which]) for one in found] for which in (0, 1))
        alone.append(float((by_cv[0] == by_cv[1]).double().mean()))
        together.append(float((both[0] == both[1]).double().mean()))
        drawn = both[1][torch.from_numpy(rng.permutation(len(both[1])))]
        apart.append(together[-1] - float((both[0] == drawn).double().mean()))
        labels.append(both[0])
    powered = e.control("Gemma: two texts agree on more heads than a text and a shuffled split", apart, above=0.0)
    e.expect(
        "Gemma: two texts that share nothing label at least 85 % of 72 query heads alike",
        together, at_least=0.85, paper="the patterns can be persistently identified", powered=powered,
    )  # fmt: skip
    e.expect(
        "Gemma: and so do the halves of the heads with the lowest CV, whatever attention the chosen tokens receive",
        alone, at_least=0.85, powered=powered,
    )  # fmt: skip
    e.report("Gemma: consistent heads of 72, by text", [int(one.sum()) for one in labels])
    rates = torch.stack(labels).double().mean(0).view(len(model.blocks), -1)
    e.report("Gemma: share of texts that call a head consistent, layer by layer", rates)


def labelled(found: Tensor) -> Tensor:
    """Whether each head is among the half with the lowest variation, none of it infinite."""
    return (found.argsort(stable=True).argsort() < len(found) // 2) & found.isfinite()


def variations(model, text: str) -> tuple[Tensor, Tensor]:
    """Of each query head, by the part's rule and without its bound on the mean."""
    ids = model.tokenizer.encode(text)[:500]
    with record(model, "blocks.*.attn.q", "blocks.*.attn.k") as tape:
        model(torch.tensor([ids]), logits="none")
    found = []
    for at, block in enumerate(model.blocks):
        q, k = tape[f"blocks.{at}.attn.q"][0][:, -WINDOW * (STEPS + 1) :], tape[f"blocks.{at}.attn.k"][0]
        asking, positions = torch.arange(len(ids) - q.shape[1], len(ids)), torch.arange(len(ids))
        scores = q @ k.repeat_interleave(len(q) // len(k), 0).mT * block.mixer.scale
        pattern = scores.masked_fill(~visible(asking, positions, block.mixer.window), -torch.inf).softmax(-1)
        found.append(masses(pattern, asking, positions, WINDOW, SELECTED))
    mass = torch.cat(found)
    return variation(mass, MEAN), variation(mass)


def needles(e: Evidence, model) -> None:
    """One key-value head a layer: one of three layers is consistent. Shown and not judged."""
    arms = policies_named("catekv(snapkv, share=0.34, mean=0)", "snapkv", "h2o", "random")
    found = grid(e, model, "needle", arms, ("0.6",), examples=1, length=400, aware=True)
    e.report("Gemma: needles found with six tenths kept", found["score"].table())
    e.report("Gemma: log-probability of the needle with six tenths kept", found["logprob"].table())
