"""A tiny random model with everything that Gemma 3 has, to try the measurement itself."""

from __future__ import annotations

from pathlib import Path

import torch

from assay import checkpoints
from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer


def source(folder: Path) -> Path:
    """Write the model into `folder`; the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return checkpoints.save(Transformer(_config()).eval(), folder, family="gemma3")


def _config() -> TransformerConfig:
    blocks = []
    for window, theta in ((16, 1e4), (None, 1e6)):
        rope = {"part": "rope", "options": {"theta": theta}}
        shape = {"heads": 4, "kv_heads": 1, "head_dim": 16, "qk_norm": {"kind": "rms", "eps": 1e-6}}
        mixer = Spec("softmax", shape | {"window": window, "position": rope})
        channel = Spec("gated", {"hidden": 64, "activation": "gelu_pytorch_tanh"})
        blocks.append(BlockConfig(mixer, channel, norms="sandwich"))
    return TransformerConfig(128, 32, tuple(blocks), context=4096, embed_scale=32**0.5)
