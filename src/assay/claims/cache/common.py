"""The measurement that claims about cache policies share: policies at budgets on seeded examples, one prefill each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.bench.compare.measure import Bench, Extras
from assay.bench.compare.prefill import Prefill
from assay.bench.compare.prompts import Prompt, tokenise
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.policy import Policy
from assay.core.reading import Query, read_held
from assay.core.state import Observed
from assay.tasks import resolve

if TYPE_CHECKING:
    from assay.claims.evidence import Evidence
    from assay.core.transformer import Transformer

Policies = dict[str, Policy]


def policies_named(*expressions: str) -> Policies:
    """Policies by their expressions."""
    return {text: build(text, "policy") for text in expressions}


@dataclass
class Scores:
    """`of[(policy, budget)]` is a list for each seed of what each of its examples scored; the full cache is ("full", "1")."""

    key: str
    of: dict[tuple[str, str], list[list[float]]]

    def per_seed(self, policy: str, budget: str) -> list[float]:
        return [fmean(seed) for seed in self.of[policy, budget]]

    def gain(self, policy: str, over: str, budget: str, over_budget: str | None = None) -> list[float]:
        """The mean difference of each seed, over the same examples."""
        pairs = zip(self.per_seed(policy, budget), self.per_seed(over, over_budget or budget), strict=True)
        return [mine - other for mine, other in pairs]

    def table(self) -> list[dict[str, Any]]:
        return [
            {"policy": policy, "budget": budget, self.key: round(fmean(self.per_seed(policy, budget)), 4)}
            for policy, budget in self.of
        ]


def prompts(
    model: Transformer, task: str, *, examples: int, seed: int, length: int, aware: bool = False
) -> Iterator[Prompt]:
    """Examples of a task as the model's tokens, `length` of them at most. `aware`: the question is part of the context."""
    made = resolve(task)

    def count(text: str) -> int:
        return len(model.tokenizer.encode(text))

    for example in made.examples(examples, seed, length, count):
        yield tokenise(model.tokenizer, example, metric=made.metric, aware=aware)


def grid(
    e: Evidence,
    model: Transformer,
    task: str,
    policies: Policies,
    budgets: Sequence[str],
    *,
    examples: int,
    length: int,
    keys: Sequence[str] = ("score", "logprob"),
    aware: bool = False,
) -> dict[str, Scores]:
    """Every policy at every budget on `examples` examples of each seed: for each key of a cell its scores."""
    found = {key: Scores(key, {}) for key in keys}
    for seed in e.progress(e.seeds, f"{task} at {length} tokens"):
        for number, prompt in enumerate(prompts(model, task, examples=examples, seed=seed, length=length, aware=aware)):
            for policy in policies.values():
                policy.reseed(seed * 1009 + number)
            bench = Bench(model, resolve(task), prompt, policies)
            cells = {("full", "1"): bench.measure("full", "1", Extras())}
            cells |= {(name, b): bench.measure(name, b, Extras()) for name in policies for b in budgets}
            for arm, cell in cells.items():
                for key in keys:
                    found[key].of.setdefault(arm, [[] for _ in e.seeds])[e.seeds.index(seed)].append(cell[key])
    return found


@torch.no_grad()
def output_errors(
    model: Transformer, prompt: Prompt, policies: Policies, budgets: Sequence[str]
) -> dict[tuple[str, str], float]:
    """How far attention's output is off where what a policy keeps is read instead of the whole context: |o' - o| / |o|.

    The mean over the growing layers, their heads, and the queries of the question (its last token, of an aware prompt)
    and of the right answer, which are those of the model with its whole cache.
    """
    prefill = Prefill(model, torch.tensor([prompt.context]), policies)
    asked: dict[int, Observed] = {}
    state, _ = prefill.fork(None, "1")
    for layer in state.growing():
        state.layers[layer].observers = (lambda store, seen, layer=layer: asked.__setitem__(layer, seen),)
    model(torch.tensor([[*prompt.question, *prompt.answer]]), state, logits="none")
    queries = {layer: Query(seen.q, seen.positions, seen.scale, None) for layer, seen in asked.items()}
    whole = {layer: read_held(queries[layer], store) for layer, store in prefill.state.growing().items()}
    found = {}
    for name in policies:
        for budget in budgets:
            fork, held = prefill.fork(name, budget)
            held.finish_prefill()
            errors = [
                ((read_held(queries[layer], store) - whole[layer]).norm(dim=-1) / whole[layer].norm(dim=-1)).mean()
                for layer, store in fork.growing().items()
            ]
            found[name, budget] = float(torch.stack(errors).mean())
    return found


@torch.no_grad()
def largest_change(model: Transformer, policies: Policies, tokens: Tensor, steps: int = 8) -> float:
    """The largest change of any logit that a budget of everything makes, over a prefill and some steps of decoding."""
    plain, last = model.start(len(tokens)), tokens[:, -steps:]
    model(tokens[:, :-steps], plain, logits="none")
    wanted = [model(last[:, i : i + 1], plain)[0] for i in range(steps)]
    worst = 0.0
    for policy in policies.values():
        state = model.start(len(tokens))
        held = Compression(policy, "1").attach(state)
        model(tokens[:, :-steps], state, logits="none")
        held.finish_prefill()
        for i in range(steps):
            logits, _ = model(last[:, i : i + 1], state)
            held.hold()
            worst = max(worst, float((logits - wanted[i]).abs().max()))
    return worst
