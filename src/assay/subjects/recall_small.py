"""A small model that recalls the value of a key from a list of pairs.

Two layers of softmax attention, four heads each, width 128, one token a word; RoPE in the first layer, none in the second, which
matches by content. It learns from short lists whose pairs are asked again and again, then from ever longer ones with fillers
between the pairs; the loss is on the answers alone. Training starts from weights with induction heads in them
(`training/induction.py`): all four heads of the second layer start as such, so that each keeps its own copy of a fact by design.
It holds no other knowledge: what a cache policy drops is what it cannot answer.

seam: subject
row: -
name: recall-small
source: Arora et al. 2023, Zoology (arXiv:2312.04927), multi-query associative recall
object: RecallSmall
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int

from assay.core.config import Spec
from assay.core.errors import AssayError
from assay.subjects.recipe import Recipe, Stage, small
from assay.subjects.subject import Subject
from assay.tasks.recall import Recall
from assay.training import Batch, Training

STAGES = (Stage(100, 24, 48, 1024), Stage(60, 48, 200, 2048), Stage(60, 128, 640, 4096))


class RecallSmall(Subject):
    """`kv_heads`: key-value heads of the four heads; `seed`: of weights and data; `stages`: the curriculum."""

    def __init__(
        self, *, kv_heads: int = 4, seed: int = 0, stages: tuple[Stage, ...] = STAGES, rate: float = 2e-3
    ) -> None:
        if min(stage.shortest for stage in stages) < 12:
            raise AssayError("a list that is asked twice needs 12 words: choose stages of at least that")
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
        return Recipe(
            config, words, self.stages, training, {"task": "recall"}, induction={"query": 0, "key": 1}, seed=self.seed
        )

    def batch_at(self, step: int) -> Batch:
        """Lists whose pairs are asked in turn, then asked again at random: half of a sequence's words, about, ask."""
        recipe = self.recipe()
        stage, rng = recipe.stage_at(step), recipe.rng(step)
        words = int(rng.integers(stage.shortest, stage.longest + 1))
        rows, again = max(1, stage.tokens // words), words // 6
        queries = int(rng.integers(1, min(64, (words - 3 * again) // 6) + 1))
        ids, _ = Recall(pairs=queries, queries=queries).batch(rows, words - 3 * again, int(rng.integers(2**31)))
        tokens = ask_again(ids, queries, again, rng)
        asked = np.zeros(tokens.shape, dtype=bool)
        asked[:, words - 3 * (queries + again) + 2 :: 3] = True
        return Batch(torch.from_numpy(tokens), torch.from_numpy(asked))


def ask_again(
    ids: Int[np.ndarray, "rows words"], queries: int, again: int, rng: np.random.Generator
) -> Int[np.ndarray, "rows more"]:
    """`ids`, which end in `queries` answered queries, followed by `again` of them drawn at random."""
    asking = ids[:, -3 * queries :].reshape(len(ids), queries, 3)
    drawn = rng.integers(queries, size=(len(ids), again))
    more = np.take_along_axis(asking, drawn[..., None], axis=1).reshape(len(ids), -1)
    return np.concatenate([ids, more], axis=1)
