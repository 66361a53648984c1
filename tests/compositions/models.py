"""Small models of unlike parts on one trunk, with random weights."""

from __future__ import annotations

import torch

from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer

VOCABULARY = 50
ROPE = {"part": "rope", "options": {"theta": 100.0}}
SOFTMAX = Spec("softmax", {"heads": 4, "kv_heads": 2, "head_dim": 8, "position": ROPE})
GDN = Spec("gated_deltanet", {"heads": 2, "head_dim": 8, "chunk": 16})
MLA = Spec("mla", {"heads": 4, "head_dim": 6, "latent": 8, "rope_dim": 8})
GATED = Spec("gated", {"hidden": 32})
MOE = Spec("moe", {"hidden": 16, "experts": 3, "top_k": 2})


def built(*blocks: BlockConfig, depth: Spec | None = None, dtype: torch.dtype = torch.float64) -> Transformer:
    torch.manual_seed(0)
    model = (
        Transformer(TransformerConfig(VOCABULARY, 24, blocks, context=4096, depth=depth or Spec("plain")))
        .to(dtype)
        .eval()
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "log_rate" not in name and "decay_bias" not in name:
                parameter.copy_(
                    torch.randn_like(parameter) * (0.4 if parameter.ndim > 1 else 0.1) + (parameter.ndim == 1)
                )
    return model


def hybrid(channel: Spec = GATED, **options) -> Transformer:
    """Three recurrent blocks to one of softmax, twice."""
    blocks = [BlockConfig(mixer, channel) for mixer in (GDN, GDN, SOFTMAX, GDN, SOFTMAX)]
    return built(*blocks, **options)


def latent(**options) -> Transformer:
    return built(*[BlockConfig(MLA, GATED)] * 2, **options)


def looped(channel: Spec = GATED, mixer: Spec = SOFTMAX, **options) -> Transformer:
    return built(*[BlockConfig(mixer, channel)] * 3, depth=Spec("looped", {"times": 2, "first": 1}), **options)


MODELS = {
    "hybrid": hybrid,
    "hybrid of experts": lambda **o: hybrid(MOE, **o),
    "latent": latent,
    "looped": looped,
    "looped recurrence": lambda **o: looped(MOE, GDN, **o),
}


def some_tokens(length: int, batch: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
