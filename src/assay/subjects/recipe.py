"""Everything that decides a subject's weights, as plain data with a fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np
import torch

from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.errors import AssayError
from assay.training import Training


@dataclass(frozen=True)
class Stage:
    """`steps` steps on sequences of `shortest` to `longest` words, about `tokens` words a step."""

    steps: int
    shortest: int
    longest: int
    tokens: int


@dataclass(frozen=True)
class Recipe:
    """How a subject is made. `data` holds what else the batches depend on; `induction`: which
    heads the weights start with (see `plant_induction`); `version` grows when a change shows nowhere else."""

    config: TransformerConfig
    words: tuple[str, ...]
    stages: tuple[Stage, ...]
    training: Training
    data: dict[str, object]
    induction: dict[str, int] | None = None
    seed: int = 0
    version: int = 1

    def __post_init__(self) -> None:
        steps = sum(stage.steps for stage in self.stages)
        if steps != self.training.steps:
            raise AssayError(f"stages of {steps} steps in all cannot fill a training of {self.training.steps}")
        if self.config.vocab_size != len(self.words):
            raise AssayError(f"{len(self.words)} words do not fit a vocabulary of {self.config.vocab_size}")

    def stage_at(self, step: int) -> Stage:
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        raise AssayError(f"step {step} lies beyond the recipe's {self.training.steps}")

    def rng(self, step: int) -> np.random.Generator:
        """What the batch of one step is drawn from."""
        return np.random.default_rng([self.seed, step])

    def fingerprint(self, probe: list[torch.Tensor]) -> str:
        """Sixteen hexadecimal digits. `probe`: batches of a few steps, so that a changed generator changes it too."""
        plain = json.dumps([asdict(self), torch.__version__.split("+")[0]], sort_keys=True)
        digest = hashlib.sha256(plain.encode())
        for tensor in probe:
            digest.update(tensor.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


def small(
    words: tuple[str, ...],
    *,
    layers: int = 2,
    width: int = 128,
    heads: int,
    kv_heads: int,
    channel: Spec,
    rotated: int = 1,
    context: int = 640,
) -> TransformerConfig:
    """A plain decoder: RMS norms before each sublayer, softmax attention over everything in all layers, its own read-out.

    The first `rotated` layers have RoPE, which they need to look back; the others match by content at any distance.
    """
    rope = {"part": "rope", "options": {"theta": 10_000.0}}
    blocks = tuple(
        BlockConfig(
            Spec(
                "softmax",
                {"heads": heads, "kv_heads": kv_heads, "bias": True, "position": rope if layer < rotated else None},
            ),
            channel,
        )
        for layer in range(layers)
    )
    return TransformerConfig(len(words), width, blocks, NormConfig("rms", 1e-6), context, tied=False)
