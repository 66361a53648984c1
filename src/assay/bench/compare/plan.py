"""The grid before it runs: every cell by name, and what is impossible and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.bench.compare.asked import Arm, built, canonical_task, code_of, policies_asked
from assay.bench.compare.cells import fingerprint
from assay.bench.compare.possible import Possible, refuse_useless
from assay.bench.compare.prompts import Prompt, tokenise
from assay.bench.compare.settings import Settings
from assay.core.budget import Budget
from assay.core.errors import AssayError
from assay.tasks import resolve

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid. `length`: tokens asked for. `refused`: why it cannot be measured."""

    task: str
    length: int
    example: int
    policy: str
    budget: str
    name: str  # the fingerprint
    refused: str | None = None

    @property
    def prompt(self) -> tuple[str, int, int]:
        """What its context is found by: cells that share it are measured from one prefill."""
        return self.task, self.length, self.example


@dataclass
class Plan:
    """Policies by canonical expression (`full` drops nothing), prompts by task and length, and the cells in the order they run."""

    policies: dict[str, Arm]
    budgets: tuple[str, ...]
    tasks: dict[str, Any]
    prompts: dict[tuple[str, int], list[Prompt]]
    cells: list[Cell]
    notes: list[dict[str, str]] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)  # a checksum of each policy's files

    @property
    def possible(self) -> list[Cell]:
        return [c for c in self.cells if c.refused is None]

    def refused(self) -> list[dict[str, Any]]:
        """What is left out and why, one entry for each policy, budget, task, length and reason."""
        several = len({length for _, length in self.prompts}) > 1
        counted = Counter((_where(c, several), c.refused) for c in self.cells if c.refused)
        return [{"what": what, "cells": n, "why": why} for (what, why), n in counted.items()]


def _where(cell: Cell, several: bool) -> str:
    return f"{cell.policy}@{cell.budget} on {cell.task}" + (f" at {cell.length}" if several else "")


def lay_out(model: Transformer, parts: Sequence[str], settings: Settings, fixed: dict[str, Any]) -> Plan:
    """The whole grid. Raises AssayError for unknown names, malformed budgets, a length beyond the model's window,
    and a budget that is impossible for every policy; what is impossible for some only is a refused cell.
    """
    if max(settings.length) > model.config.context:
        raise AssayError(
            f"a length of {max(settings.length)} tokens is more than the {model.config.context} that {model.name} "
            f"can read: ask for at most {model.config.context}"
        )
    asked = policies_asked(parts, settings.budgets, settings.match)
    policies = {"full": built("full"), **{name: built(name) for name in asked}}
    dropping = [
        found for name, found in asked.items() if policies[name].policy is not None or settings.match == "bytes"
    ]
    budgets = tuple(dict.fromkeys(b for found in dropping for b in found))
    budgets = budgets or tuple(dict.fromkeys(str(Budget.parse(b)) for b in settings.budgets))
    asked["random"] = tuple(dict.fromkeys((*asked.get("random", ()), *budgets)))
    code = {name: code_of(name) for name in asked}
    tasks = {name: resolve(name) for name in dict.fromkeys(map(canonical_task, settings.tasks))}
    prompts = {
        (name, length): _prompts(model, task, name, length, settings)
        for name, task in tasks.items()
        for length in settings.length
    }
    possible, cells = Possible(model, settings.match), []
    grid = [("full", "1"), *((p, b) for p, found in asked.items() for b in found)]
    for (task, length), its_prompts in prompts.items():
        for example, prompt in enumerate(its_prompts):
            said = {**fixed, "task": task, "length": length, "example": example, "prompt": prompt.digest}
            asked_of = fingerprint(
                said
            )  # once for all cells of the prompt: ten thousand long texts would take a second
            for policy, budget in grid:
                why = possible.why_not(prompt, policies[policy], budget)
                told = {"prompt": asked_of, "policy": policy, "budget": budget, "code": code.get(policy, "")}
                name = fingerprint(told)
                cells.append(Cell(task, length, example, policy, budget, name, why))
    refuse_useless(cells, budgets, [name for name in asked if name != "random"] or ["random"])
    notes = [
        {"policy": name, "says": why}
        for name, arm in policies.items()
        if arm.policy is not None and (why := arm.policy.explain(model.start(1)))
    ]
    return Plan(policies, budgets, tasks, prompts, cells, notes, code)


def _prompts(model: Transformer, task: Any, name: str, length: int, settings: Settings) -> list[Prompt]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise AssayError(f"model {model.name} has no tokenizer, so tasks of text cannot be read")
    if not model.config.causal:
        raise AssayError(
            f"model {model.name} is an encoder: it generates nothing and keeps no cache to compare policies on"
        )
    examples = task.examples(settings.examples, settings.seed, length, lambda text: len(tokenizer.encode(text)))
    prompts = [tokenise(tokenizer, e, metric=task.metric, aware=settings.aware) for e in examples]
    if not prompts:
        raise AssayError(f"task {name} gives no example")
    return prompts
