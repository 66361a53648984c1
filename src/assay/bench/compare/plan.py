"""The grid before it runs: every cell by name, what is impossible and why, and how long it should take."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from assay.bench.compare.cells import fingerprint
from assay.bench.compare.prompts import Prompt, tokenise
from assay.bench.compare.settings import BASELINES, Settings, split
from assay.core import registry
from assay.core.budget import Budget
from assay.core.build import build
from assay.core.errors import AssayError, UnknownPart
from assay.core.expressions import Call, parse
from assay.core.policy import Policy
from assay.core.store import Store
from assay.tasks import resolve

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


@dataclass(frozen=True)
class Cell:
    """One point of the grid. `refused`: why it cannot be measured."""

    task: str
    example: int
    policy: str
    budget: str
    name: str  # the fingerprint
    refused: str | None = None


@dataclass
class Plan:
    """Policies by canonical expression (`full` is None: the model's own cache), prompts by task, and the cells in the order they run."""

    policies: dict[str, Policy | None]
    budgets: tuple[str, ...]
    tasks: dict[str, Any]
    prompts: dict[str, list[Prompt]]
    cells: list[Cell]
    notes: list[dict[str, str]] = field(default_factory=list)

    @property
    def possible(self) -> list[Cell]:
        return [c for c in self.cells if c.refused is None]

    def refused(self) -> list[dict[str, Any]]:
        """What is left out and why, one entry for each policy, budget, task and reason."""
        counted = Counter((f"{c.policy}@{c.budget} on {c.task}", c.refused) for c in self.cells if c.refused)
        return [{"what": what, "cells": n, "why": why} for (what, why), n in counted.items()]


def lay_out(model: Transformer, parts: Sequence[str], settings: Settings, fixed: dict[str, Any]) -> Plan:
    """The whole grid. Raises AssayError for unknown names, malformed budgets, a length beyond the model's window,
    and a budget that is impossible for every policy; what is impossible for some only is a refused cell.
    """
    if settings.length > model.config.context:
        raise AssayError(
            f"a length of {settings.length} tokens is more than the {model.config.context} that {model.name} can read: "
            f"ask for at most {model.config.context}"
        )
    asked = policies_asked(parts, settings.budgets)
    budgets = tuple(dict.fromkeys(b for found in asked.values() for b in found))
    asked["random"] = tuple(dict.fromkeys((*asked.get("random", ()), *budgets)))
    built = {name: _policy(name) for name in asked}
    tasks = {name: resolve(name) for name in dict.fromkeys(map(canonical_task, settings.tasks))}
    prompts = {name: _prompts(model, task, name, settings) for name, task in tasks.items()}
    code = {name: code_of(name) for name in asked}
    stores, cells = _one_token(model), []
    for task, its_prompts in prompts.items():
        for example, prompt in enumerate(its_prompts):
            said = {**fixed, "task": task, "example": example, "prompt": prompt.digest}
            grid = [("full", "1"), *((p, b) for p, found in asked.items() for b in found)]
            for policy, budget in grid:
                why = _impossible(model, prompt, built.get(policy), budget, stores)
                name = fingerprint({**said, "policy": policy, "budget": budget, "code": code.get(policy, "")})
                cells.append(Cell(task, example, policy, budget, name, why))
    _refuse_useless(cells, budgets, [name for name in asked if name != "random"] or ["random"])
    notes = [{"policy": p, "says": why} for p, policy in built.items() if (why := policy.explain(model.start(1)))]
    return Plan({"full": None, **built}, budgets, tasks, prompts, cells, notes)


def check_names(parts: Sequence[str], settings: Settings) -> None:
    """Raise AssayError for a name, expression or budget that cannot be meant, before a model is loaded for it."""
    for name in policies_asked(parts, settings.budgets):
        _policy(name)
    for name in settings.tasks:
        resolve(canonical_task(name))


def policies_asked(parts: Sequence[str], budgets: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Canonical policies with the budgets each is measured at: its own where the expression has one, else all of them."""
    found: dict[str, list[str]] = {"random": []}
    everywhere = [str(Budget.parse(b)) for b in budgets]
    for text in split(list(parts)):
        call = parse(text)
        name = str(canonical(Call(call.name, call.args, call.options)))
        if name == "full":
            if call.budget and not Budget.parse(call.budget).everything:
                raise AssayError(
                    f"{text}: full keeps everything; name it without a budget, or a policy that drops some"
                )
            continue
        found.setdefault(name, []).extend([str(Budget.parse(call.budget))] if call.budget else everywhere)
    if found.keys() == {"random"} and not found["random"]:
        found["random"] = everywhere
    return {name: tuple(dict.fromkeys(its)) for name, its in found.items()}


def canonical(call: Call) -> Call:
    """The call with the names of the registry in place of aliases. Raises UnknownPart with the nearest names."""

    def inner(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(inner, value))
        if not isinstance(value, Call):
            return value
        try:
            return canonical(value)
        except UnknownPart:
            return value  # a bare word may be a text; `build` says so where it is not

    name = registry.find(call.name, "policy").name
    return Call(name, inner(call.args), tuple((k, inner(v)) for k, v in call.options), call.budget)


def canonical_task(text: str) -> str:
    name, colon, _ = text.partition(":")
    if colon and name in ("text", "jsonl"):
        return text
    call = parse(text)
    return str(Call(registry.find(call.name, "task").name, call.args, call.options))


def code_of(policy: str) -> str:
    """A checksum of the files that the policy's parts are written in: an edited policy is another policy."""

    def files(value: Any) -> set[str]:
        if isinstance(value, tuple):
            return {f for one in value for f in files(one)}
        if not isinstance(value, Call):
            return set()
        inside = files(value.args) | files(tuple(v for _, v in value.options))
        try:
            return inside | {str(registry.find(value.name, "policy").path)}
        except UnknownPart:
            return inside

    digest = hashlib.sha256()
    for path in sorted(files(parse(policy))):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def _policy(name: str) -> Policy:
    policy = build(name, "policy")
    if not isinstance(policy, Policy):
        raise AssayError(f"{name} is no cache policy: its class must derive from assay.core.policy.Policy")
    return policy


def _prompts(model: Transformer, task: Any, name: str, settings: Settings) -> list[Prompt]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise AssayError(f"model {model.name} has no tokenizer, so tasks of text cannot be read")
    if not model.config.causal:
        raise AssayError(
            f"model {model.name} is an encoder: it generates nothing and keeps no cache to compare policies on"
        )
    examples = task.examples(
        settings.examples, settings.seed, settings.length, lambda text: len(tokenizer.encode(text))
    )
    prompts = [tokenise(tokenizer, e, metric=task.metric, aware=settings.aware) for e in examples]
    if not prompts:
        raise AssayError(f"task {name} gives no example")
    return prompts


def _impossible(
    model: Transformer, prompt: Prompt, policy: Policy | None, budget: str, stores: list[Store]
) -> str | None:
    if len(prompt) > model.config.context:
        return (
            f"{len(prompt)} tokens with question and answer are more than the model's window of {model.config.context}"
        )
    if policy is None:
        return None
    wanted = Budget.parse(budget)
    if not policy.bounded and not wanted.everything:
        return "it keeps everything, whatever the budget"
    if wanted.everything:
        return None
    # in bytes this is the most it can be: a policy's own columns cost something too
    allowed = int(wanted.tokens(torch.tensor([len(prompt.context)], device=model.device), stores))
    if allowed < 1 and stores:
        return "the budget holds not even one token: raise it"
    pins = policy.recent + (max(policy.sink, prompt.prompted) if policy.prompt else policy.sink)
    if allowed < pins and stores:
        return f"the budget is {allowed} tokens, but {pins} are pinned (sink={policy.sink}, recent={policy.recent}): raise it or pin fewer"
    return None


def _one_token(model: Transformer) -> list[Store]:
    """The growing stores after one token: what a budget of bytes is reckoned with."""
    state = model.start(1)
    with torch.no_grad():
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device), state, logits="none")
    return list(state.growing().values())


def _refuse_useless(cells: Sequence[Cell], budgets: Sequence[str], asked: Sequence[str]) -> None:
    mine = [c for c in cells if c.policy in asked]
    if mine and all(c.refused for c in mine):
        raise AssayError(f"{mine[0].policy}@{mine[0].budget}: {mine[0].refused}")
    for budget in budgets:
        mine = [c for c in cells if c.budget == budget and c.policy != "full"]
        if mine and all(c.refused for c in mine):
            raise AssayError(f"budget {budget}: {mine[0].refused}")


def expected_seconds(model: Transformer, plan: Plan, cells: Sequence[Cell], settings: Settings) -> dict[str, float]:
    """By cell name: what the cell should take, from a short probe of this model on this machine.

    An example's prefill is counted with its first cell.
    """
    with torch.no_grad():
        reading, answering, step = _probe(model, min(256, model.config.context // 2))
    expected, seen = {}, set()
    for cell in cells:
        prompt = plan.prompts[cell.task][cell.example]
        seconds = (
            (len(prompt.question) + len(prompt.context) - prompt.prompted) * reading
            + len(prompt.answer) * answering
            + 4 * step
        )
        if cell.example < settings.speed_examples:
            seconds += (settings.speed_steps + 1) * step
        if settings.generate:
            seconds += (len(prompt.answer) + 8) * step
        if (cell.task, cell.example) not in seen:
            seen.add((cell.task, cell.example))
            seconds += prompt.prompted * reading
        expected[cell.name] = seconds
    return expected


def _probe(model: Transformer, tokens: int) -> tuple[float, float, float]:
    """Seconds a token of a prefill, a token with its logits, and a decoding step; the better of two tries."""
    ids = torch.arange(tokens, device=model.device)[None] % model.config.vocab_size
    tries = []
    for _ in range(2):
        state, times = model.start(1), [time.perf_counter()]
        for part, logits in ((ids, "none"), (ids[:, : max(1, tokens // 4)], "all"), (ids[:, :1], "last")):
            out, _ = model(part, state, logits=logits)
            float(state.seen[0] if out is None else out[0, -1, 0])  # waits for the device
            times.append(time.perf_counter())
        tries.append([b - a for a, b in itertools.pairwise(times)])
    reading, answering, step = map(min, zip(*tries, strict=True))
    return reading / tokens, answering / max(1, tokens // 4), step


__all__ = ["BASELINES", "Cell", "Plan", "canonical", "expected_seconds", "lay_out"]
