"""One prompt's cells: the unit of work, wherever it is done. One prefill serves them all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from assay.bench.compare.asked import Arm
from assay.bench.compare.measure import Bench, Extras
from assay.bench.compare.plan import Cell, Plan
from assay.bench.compare.possible import Targets
from assay.bench.compare.prompts import Prompt
from assay.bench.compare.settings import Settings
from assay.core.errors import AssayError

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
    policies: Mapping[str, Arm],
    group: Group,
    settings: Settings,
    say: Callable[[str], None] = lambda what: None,
) -> Iterator[dict[str, Any]]:
    """The records of a group's cells, each as soon as it is measured; `full` first, for the others are held against it.

    What a policy cannot do, and memory that does not suffice, is a record that says so (`skipped`).
    """
    arms = {c.policy: policies[c.policy] for c in group.cells}
    for arm in arms.values():
        if arm.policy is not None:
            arm.policy.reseed(settings.seed * 1_000_003 + group.example)
    say(f"{group.says}: reading the context")
    benches = Benches(model, task, group.prompt, arms, settings)
    text = text_digest(group.prompt)
    room = model.config.context - len(group.prompt) - settings.speed_steps - 1
    timed = settings.speed_steps if group.example < settings.speed_examples and room > 0 else 0
    extras = Extras(
        (settings.generate or task.any_order) and task.metric != "nll",
        timed,
        picture=group.example < settings.picture_examples,
    )
    # a resumed group: full's cell is on the disk, but the others' reference is not; timed alike, for that decides in how
    # many pieces a question is read
    if all(c.policy != "full" for c in group.cells):
        benches.of("full").measure("full", "1", replace(extras, picture=False))
    for cell in sorted(group.cells, key=lambda c: (c.policy != "full", arms[c.policy].held_in)):  # a format at a time
        say(f"{group.says}: {cell.policy}@{cell.budget}")
        try:
            found = {**benches.of(cell.policy).measure(cell.policy, cell.budget, extras), "skipped": None}
        except (AssayError, torch.OutOfMemoryError) as error:
            why = str(error).splitlines()[0] if isinstance(error, AssayError) else f"out of memory on {settings.device}"
            found = {"skipped": why}
        yield {**_head(model, task, cell, settings), "text": text, **found}


class Benches:
    """One bench for each number format, made when it is first asked for; the one of full precision is what all are held against."""

    def __init__(
        self, model: Transformer, task: Any, prompt: Prompt, arms: Mapping[str, Arm], settings: Settings
    ) -> None:
        self.arms, self.targets = arms, Targets(model, settings.match)
        self._make = partial(
            Bench,
            model,
            task,
            prompt,
            chunk=settings.chunk,
            budget_of=lambda budget: self.targets.budget(budget, len(prompt.context)),
        )
        self._made: dict[str, Bench] = {}
        self._bench("")

    def of(self, policy: str) -> Bench:
        return self._bench(self.arms[policy].held_in if policy in self.arms else "")

    def _bench(self, held_in: str) -> Bench:
        if held_in not in self._made:
            mine = {name: arm for name, arm in self.arms.items() if arm.held_in == held_in}
            format = next((arm.format for arm in mine.values()), None)
            policies = {name: arm.policy for name, arm in mine.items() if arm.policy is not None}
            whole = self._made.get("")
            self._made = {} if whole is None else {"": whole}  # a format at a time, or memory would hold them all
            self._made[held_in] = self._make(policies, format=format, reference=whole)
        return self._made[held_in]


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
