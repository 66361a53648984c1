"""Small models that track variables through a trace that restates their values.

Models of 1, 2, 4 or 8 key-value heads and equally many parameters (to 0.2 %: biases differ): eight query heads always, and what fewer
key-value heads save goes to the feed-forward. Two layers of softmax attention, width 128, one token a word; RoPE in the first,
none in the second. They are trained on traces of all restatement rates, with the loss on every value that was stated
before; the trace is given, not thought up. Training starts from weights with induction heads in them
(`training/induction.py`): all heads of the second layer start as such, so that redundancy across heads is there by design and
what is measured is how much of it survives eviction.

seam: subject
row: D21
name: trace-small
source: Random Attention, row D21: a small model trained on variable-tracking traces
object: TraceSmall
"""

from __future__ import annotations

import torch

from assay.core.config import Spec
from assay.core.errors import AssayError
from assay.subjects.recipe import Recipe, Stage, small
from assay.subjects.subject import Subject
from assay.tasks.restated import Restated
from assay.training import Batch, Training

STAGES = (Stage(100, 24, 60, 1024), Stage(50, 60, 180, 2048), Stage(50, 120, 520, 4096))


class TraceSmall(Subject):
    """`kv_heads`: 1, 2, 4 or 8; `seed`: of weights and data; `stages`: the curriculum."""

    def __init__(
        self, *, kv_heads: int = 4, seed: int = 0, stages: tuple[Stage, ...] = STAGES, rate: float = 2e-3
    ) -> None:
        if kv_heads not in (1, 2, 4, 8):
            raise AssayError(f"trace-small has 1, 2, 4 or 8 key-value heads, not {kv_heads}")
        self.name = f"trace-small(kv_heads={kv_heads})"
        self.kv_heads, self.seed, self.stages, self.rate = kv_heads, seed, stages, rate

    def recipe(self) -> Recipe:
        words = tuple(Restated().vocabulary)
        # a key-value head has 2 x 128 x 16 weights, as many as 16 hidden units of the feed-forward (its 32 biases aside)
        channel = Spec("mlp", {"hidden": 256 + 16 * (8 - self.kv_heads)})
        config = small(words, layers=2, width=128, heads=8, kv_heads=self.kv_heads, channel=channel, context=640)
        steps = sum(stage.steps for stage in self.stages)
        training = Training(steps, learning_rate=self.rate, warmup=50, final=0.05)
        return Recipe(
            config, words, self.stages, training, {"task": "restated"}, induction={"query": 1, "key": 2}, seed=self.seed
        )

    def batch_at(self, step: int) -> Batch:
        """Traces of one rate, 1 half of the time and else drawn evenly, over as many variables as fit, sixteen at most."""
        recipe = self.recipe()
        stage, rng = recipe.stage_at(step), recipe.rng(step)
        words = int(rng.integers(stage.shortest, stage.longest + 1))
        most = min(8, (words - 3) // 12)
        variables, derived = (int(number) for number in rng.integers(1, most + 1, size=2))
        task = Restated(rho=min(1.0, 2 * float(rng.random())), variables=variables, derived=derived)
        tokens, asked = task.batch(max(1, stage.tokens // words), words, int(rng.integers(2**31)))
        return Batch(torch.from_numpy(tokens), torch.from_numpy(asked))
