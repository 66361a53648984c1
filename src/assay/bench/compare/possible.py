"""Which cells cannot be measured, and why: said before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from assay.bench.compare.prompts import Prompt
from assay.core.budget import Budget
from assay.core.errors import AssayError
from assay.core.policy import Policy

if TYPE_CHECKING:
    from assay.bench.compare.plan import Cell
    from assay.core.transformer import Transformer


class Possible:
    """Judges cells of one model. What depends on a prompt's size alone is reckoned once for each size."""

    def __init__(self, model: Transformer) -> None:
        self.window, self.device = model.config.context, model.device
        state = model.start(1)
        with torch.no_grad():  # one token: what a budget of bytes is reckoned with
            model(torch.zeros(1, 1, dtype=torch.long, device=model.device), state, logits="none")
        self.stores = list(state.growing().values())
        self._budgets: dict[str, Budget] = {}
        self._tokens: dict[tuple[str, int], int] = {}

    def why_not(self, prompt: Prompt, policy: Policy | None, budget: str) -> str | None:
        """One line where the cell cannot be measured, else None. `policy` None: the full cache."""
        if len(prompt) > self.window:
            return f"{len(prompt)} tokens with question and answer are more than the model's window of {self.window}"
        if policy is None:
            return None
        wanted = self._budget(budget)
        if not policy.bounded and not wanted.everything:
            return "it keeps everything, whatever the budget"
        if wanted.everything or not self.stores:
            return None
        allowed = self._allowed(budget, len(prompt.context))
        if allowed < 1:
            return "the budget holds not even one token: raise it"
        pins = policy.recent + (max(policy.sink, prompt.prompted) if policy.prompt else policy.sink)
        if allowed < pins:
            said = f"(sink={policy.sink}, recent={policy.recent}, prompt={policy.prompt})"
            return f"the budget is {allowed} tokens, but {pins} are pinned {said}: raise it or pin fewer"
        return None

    def _budget(self, text: str) -> Budget:
        if text not in self._budgets:
            self._budgets[text] = Budget.parse(text)
        return self._budgets[text]

    def _allowed(self, budget: str, context: int) -> int:
        # in bytes this is the most it can be: a policy's own columns cost something too
        if (budget, context) not in self._tokens:
            lengths = torch.tensor([context], device=self.device)
            self._tokens[budget, context] = int(self._budget(budget).tokens(lengths, self.stores))
        return self._tokens[budget, context]


def refuse_useless(cells: Sequence[Cell], budgets: Sequence[str], asked: Sequence[str]) -> None:
    """Raise AssayError where nothing that was asked for can be measured, or nothing at one of the budgets."""
    mine = [c for c in cells if c.policy in asked]
    if mine and all(c.refused for c in mine):
        raise AssayError(f"{mine[0].policy}@{mine[0].budget}: {mine[0].refused}")
    for budget in budgets:
        mine = [c for c in cells if c.budget == budget and c.policy != "full"]
        if mine and all(c.refused for c in mine):
            raise AssayError(f"budget {budget}: {mine[0].refused}")
