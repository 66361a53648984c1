"""One prompt's cells: the unit of work, wherever it is done. One prefill serves them all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from assay.bench.compare.measure import Bench, Extras
from assay.bench.compare.plan import Cell, Plan
from assay.bench.compare.prompts import Prompt
from assay.bench.compare.settings import Settings
from assay.core.errors import AssayError
from assay.core.policy import Policy

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


class Lost(AssayError):
    """Some cells could not be measured for want of a process that lives; all others are finished and kept."""


@dataclass(frozen=True)
class Group:
    """Unfinished cells of one prompt. `of`: how many examples its task has at this length."""

    prompt: Prompt
    cells: tuple[Cell, ...]
    of: int

    @property
    def task(self) -> str:
        return self.cells[0].task

    @property
    def example(self) -> int:
        return self.cells[0].example

    @property
    def says(self) -> str:
        """Which example this is, for people."""
        return f"{self.task} at {self.cells[0].length}, {self.example + 1}/{self.of}"

    def without(self, finished: set[str]) -> Group | None:
        """What is left of it once the cells of these names are finished; None where that is nothing."""
        left = tuple(c for c in self.cells if c.name not in finished)
        return replace(self, cells=left) if left else None


def groups(plan: Plan, cells: Sequence[Cell]) -> list[Group]:
    """These cells of the plan by prompt, in the plan's order."""
    found = []
    for _, its in groupby(cells, key=lambda c: c.prompt):
        mine = tuple(its)
        prompts = plan.prompts[mine[0].task, mine[0].length]
        found.append(Group(prompts[mine[0].example], mine, len(prompts)))
    return found


def measured(
    model: Transformer,
    task: Any,
    policies: Mapping[str, Policy | None],
    group: Group,
    settings: Settings,
    say: Callable[[str], None] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """The records of a group's cells, each as soon as it is measured; `full` first, for the others are held against it.

    What a policy cannot do, and memory that does not suffice, is a record that says so (`skipped`).
    """
    needed = {c.policy for c in group.cells} - {"full"}
    acting = {name: policy for name, policy in policies.items() if name in needed and policy is not None}
    for policy in acting.values():
        policy.reseed(settings.seed * 1_000_003 + group.example)
    say(f"{group.says}: reading the context")
    bench = Bench(model, task, group.prompt, acting)
    text = text_digest(group.prompt)
    room = model.config.context - len(group.prompt) - settings.speed_steps - 1
    timed = settings.speed_steps if group.example < settings.speed_examples and room > 0 else 0
    extras = Extras(
        (settings.generate or task.any_order) and task.metric != "nll", timed, picture=group.example < settings.picture_examples
    )
    if all(
        c.policy != "full" for c in group.cells
    ):  # resumed: full's cell is on the disk, the others' reference is not
        bench.measure(
            "full", "1", replace(extras, picture=False)
        )  # timed alike, for that decides in how many pieces it reads
    for cell in sorted(group.cells, key=lambda c: c.policy != "full"):
        say(f"{group.says}: {cell.policy}@{cell.budget}")
        try:
            found = {**bench.measure(cell.policy, cell.budget, extras), "skipped": None}
        except (AssayError, torch.OutOfMemoryError) as error:
            why = str(error).splitlines()[0] if isinstance(error, AssayError) else f"out of memory on {settings.device}"
            found = {"skipped": why}
        yield {**_head(model, task, cell, settings), "text": text, **found}


def text_digest(prompt: Prompt) -> str:
    """Names the words of an example, whatever tokens they are cut into: two runs asked the same where these are equal."""
    said = "\0".join((prompt.example.context, prompt.example.question, prompt.example.answers[0]))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _head(model: Transformer, task: Any, cell: Cell, settings: Settings) -> dict[str, Any]:
    return {
        "cell": cell.name, "model": model.name, "policy": cell.policy, "budget": cell.budget, "task": cell.task,
        "metric": task.metric, "length": cell.length, "seed": settings.seed, "example": cell.example,
        "aware": settings.aware, "measured": round(time.time(), 3),
    }  # fmt: skip
