"""Tiny Transformers for tests: every weight drawn at random, so that scales, biases and norms take part."""

from __future__ import annotations

from typing import Any

import torch

from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer

ROPE = {"part": "rope", "options": {"theta": 100.0}}


def tiny_config(
    windows: tuple[int | None, ...] = (None, 6, None),
    *,
    mixer: dict[str, Any] | None = None,
    block: dict[str, Any] | None = None,
    channel: Spec | None = None,
    **changes: Any,
) -> TransformerConfig:
    """One block for each entry of `windows`, of width 16, with 4 heads on 2 key-value heads of 6 coordinates."""
    attention = {"heads": 4, "kv_heads": 2, "head_dim": 6, "position": ROPE} | (mixer or {})
    blocks = tuple(
        BlockConfig(
            Spec("softmax", attention | {"window": window}),
            channel or Spec("gated", {"hidden": 20}),
            **(block or {}),
        )
        for window in windows
    )
    plain = {"vocab_size": 31, "width": 16, "blocks": blocks, "norm": NormConfig("rms"), "context": 256}
    return TransformerConfig(**plain | changes)


def tiny(config: TransformerConfig | None = None, dtype: torch.dtype = torch.float64, **options: Any) -> Transformer:
    model = Transformer(config or tiny_config(**options)).to(dtype)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in model.parameters():
            draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(draw * 0.4 if p.ndim > 1 else 1 + 0.3 * draw)
    return model


def tokens(*shape: int, seed: int = 3, vocab: int = 31) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))
