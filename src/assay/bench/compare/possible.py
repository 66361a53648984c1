"""Which cells cannot be measured, and why: said before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from assay.bench.compare.asked import Arm
from assay.bench.compare.prompts import Prompt
from assay.core.budget import Budget
from assay.core.errors import AssayError
from assay.core.store import Store
from assay.report.format import bytes_text

if TYPE_CHECKING:
    from assay.bench.compare.plan import Cell
    from assay.core.transformer import Transformer


class Possible:
    """Judges cells of one model. What depends on a prompt's size alone is reckoned once for each size."""

    def __init__(self, model: Transformer, match: str = "tokens") -> None:
        self.window, self.device, self.targets = model.config.context, model.device, Targets(model, match)
        self._tokens: dict[tuple[str, int, str], int] = {}
        self._unfit: dict[str, str | None] = {}  # by format: why this model cannot be held in it

    def why_not(self, prompt: Prompt, arm: Arm, budget: str) -> str | None:
        """One line where the cell cannot be measured, else None."""
        if len(prompt) > self.window:
            return f"{len(prompt)} tokens with question and answer are more than the model's window of {self.window}"
        if (why := self._unfit_for(arm)) is not None:
            return why
        wanted, policy = self.targets.budget(budget, len(prompt.context)), arm.policy
        if wanted.everything or not self.targets.stores():
            return None
        if policy is None:
            return self._too_large(prompt, arm, wanted)
        if not policy.bounded:
            return "it keeps everything, whatever the budget"
        allowed = self._allowed(budget, len(prompt.context), arm)
        if allowed < 1:
            return "the budget holds not even one token: raise it"
        pins = policy.recent + (max(policy.sink, prompt.prompted) if policy.prompt else policy.sink)
        if allowed < pins:
            said = f"(sink={policy.sink}, recent={policy.recent}, prompt={policy.prompt})"
            return f"the budget is {allowed} tokens, but {pins} are pinned {said}: raise it or pin fewer"
        return None

    def _unfit_for(self, arm: Arm) -> str | None:
        if arm.held_in not in self._unfit:
            try:
                self.targets.stores(arm)
                self._unfit[arm.held_in] = None
            except AssayError as error:
                self._unfit[arm.held_in] = str(error).splitlines()[0]
        return self._unfit[arm.held_in]

    def _too_large(self, prompt: Prompt, arm: Arm, wanted: Budget) -> str | None:
        holds = Budget.matching(1, tokens=len(prompt.context), stores=self.targets.stores(arm))
        if holds.amount <= wanted.amount:
            return None
        sizes = bytes_text(holds.amount), bytes_text(wanted.amount)
        return (
            f"it keeps every token and holds {sizes[0]} in the eligible layers, more than the {sizes[1]} of this budget"
        )

    def _allowed(self, budget: str, context: int, arm: Arm) -> int:
        # in bytes this is the most it can be: a policy's own columns cost something too
        key = budget, context, arm.held_in
        if key not in self._tokens:
            lengths = torch.tensor([context], device=self.device)
            target = self.targets.budget(budget, context)
            self._tokens[key] = int(target.tokens(lengths, self.targets.stores(arm)))
        return self._tokens[key]


class Targets:
    """What budgets come to on one model: as they are written, or (`match` "bytes") shares as bytes of the full cache."""

    def __init__(self, model: Transformer, match: str = "tokens") -> None:
        self.model, self.match = model, match
        self._budgets: dict[tuple[str, int], Budget] = {}
        self._stores: dict[str, list[Store]] = {}

    def budget(self, text: str, context: int) -> Budget:
        """The budget of so many tokens of context. Raises AssayError for tokens where bytes are matched."""
        if (text, context) not in self._budgets:
            found = Budget.parse(text)
            if self.match == "bytes" and found.kind == "tokens":
                raise AssayError(f"budget {text}: with match=bytes write a share such as 0.25, or bytes such as 4MiB")
            if self.match == "bytes" and found.kind == "ratio" and not found.everything and self.stores():
                found = Budget.matching(found.amount, tokens=context, stores=self.stores())
            self._budgets[text, context] = found
        return self._budgets[text, context]

    def stores(self, arm: Arm | None = None) -> list[Store]:
        """The growing stores after one token, in full precision or in the arm's format: what bytes are reckoned with."""
        name = arm.held_in if arm is not None else ""
        if name not in self._stores:
            state = self.model.start(1)
            if arm is not None and arm.format is not None:
                state.hold_in(arm.format)
            with torch.no_grad():
                self.model(torch.zeros(1, 1, dtype=torch.long, device=self.model.device), state, logits="none")
            self._stores[name] = list(state.growing().values())
        return self._stores[name]


def refuse_useless(cells: Sequence[Cell], budgets: Sequence[str], asked: Sequence[str]) -> None:
    """Raise AssayError where nothing that was asked for can be measured, or nothing at one of the budgets."""
    mine = [c for c in cells if c.policy in asked]
    if mine and all(c.refused for c in mine):
        raise AssayError(f"{mine[0].policy}@{mine[0].budget}: {mine[0].refused}")
    for budget in budgets:
        mine = [c for c in cells if c.budget == budget and c.policy != "full"]
        if mine and all(c.refused for c in mine):
            raise AssayError(f"budget {budget}: {mine[0].refused}")
