"""A small model that recalls the value of a key from a list of pairs.

Two layers of softmax attention with RoPE, four heads each, width 128, one token a word. It learns from short lists that are
asked for all of their keys, then from ever longer ones with fillers between the pairs; the loss is on the answers alone.
It needs one copy per fact and holds no other knowledge, so what a cache policy drops is what it cannot answer.

seam: subject
row: -
name: recall-small
source: Arora et al. 2023, Zoology (arXiv:2312.04927), multi-query associative recall
object: RecallSmall
"""

from __future__ import annotations

import torch

from assay.core.config import Spec
from assay.subjects.recipe import Recipe, Stage, small
from assay.subjects.subject import Subject
from assay.tasks.recall import Recall
from assay.training import Batch, Training

STAGES = (Stage(500, 12, 40, 2048), Stage(300, 24, 160, 4096), Stage(500, 48, 640, 6144))


class RecallSmall(Subject):
    """`kv_heads`: key-value heads of the four heads; `seed`: of weights and data; `stages`: the curriculum."""

    def __init__(
        self, *, kv_heads: int = 4, seed: int = 0, stages: tuple[Stage, ...] = STAGES, rate: float = 2e-3
    ) -> None:
        self.name = "recall-small"
        self.kv_heads, self.seed, self.stages, self.rate = kv_heads, seed, stages, rate

    def recipe(self) -> Recipe:
        words = tuple(Recall().vocabulary)
        config = small(
            words,
            layers=2,
            width=128,
            heads=4,
            kv_heads=self.kv_heads,
            channel=Spec("gated", {"hidden": 256}),
            context=640,
        )
        steps = sum(stage.steps for stage in self.stages)
        training = Training(steps, learning_rate=self.rate, warmup=50, final=0.05)
        return Recipe(config, words, self.stages, training, {"task": "recall"}, self.seed)

    def batch_at(self, step: int) -> Batch:
        """Half of the sequences' words ask; every second step has fewer pairs than fit, and more fillers."""
        recipe = self.recipe()
        stage, rng = recipe.stage_at(step), recipe.rng(step)
        words = int(rng.integers(stage.shortest, stage.longest + 1))
        queries = max(1, min(64, words // (6 if step % 2 else 12)))
        most = min(64, (words - 3 * queries) // 3)
        pairs = 0 if step % 2 else int(rng.integers(queries, most + 1))
        task = Recall(pairs=pairs, queries=queries)
        tokens, asked = task.batch(max(1, stage.tokens // words), words, int(rng.integers(2**31)))
        return Batch(torch.from_numpy(tokens), torch.from_numpy(asked))
