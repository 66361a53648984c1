"""Small models with random weights, and a plain reference of the trunk that takes an explicit mask for every layer."""

from __future__ import annotations

import torch

from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer

VOCABULARY = 61


def tiny(
    *,
    kv_heads: int = 2,
    heads: int = 4,
    windows: tuple[int | None, ...] = (None, 8, None),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    rope: bool = True,
    **mixer: object,
) -> Transformer:
    """Grouped heads, rotary positions, norms on queries and keys, some layers with a window."""
    torch.manual_seed(seed)
    options = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": 8,
        "qk_norm": {"kind": "rms"},
        "position": {"part": "rope", "options": {"theta": 100.0}} if rope else None,
        **mixer,
    }
    blocks = tuple(
        BlockConfig(Spec("softmax", {**options, "window": w}), Spec("gated", {"hidden": 32, "activation": "silu"}))
        for w in windows
    )
    config = TransformerConfig(vocab_size=VOCABULARY, width=16, blocks=blocks, norm=NormConfig(), context=4096)
    model = Transformer(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.6 if parameter.ndim > 1 else 0.2) + (parameter.ndim == 1))
    return model


def some_tokens(length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def reference(model: Transformer, tokens: torch.Tensor, allowed: dict[int, torch.Tensor]) -> torch.Tensor:
    """Logits of one whole sequence, where in layer l and key-value head h query t reads key s iff allowed[l][h, t, s].

    Written out with nothing of the cache: full keys and values, an explicit score matrix, minus infinity where masked.
    """
    positions = torch.arange(tokens.shape[1])[None]
    x = model.embed(tokens) * model.config.embed_scale
    for layer, block in enumerate(model.blocks):
        mixer = block.mixer
        normed = block.norm1(x)
        q, k, v = (
            linear(normed).unflatten(-1, (-1, mixer.head_dim)).transpose(1, 2) for linear in (mixer.q, mixer.k, mixer.v)
        )
        q, k = mixer.q_norm(q), mixer.k_norm(k)
        if mixer.position is not None:
            q, k = mixer.position.rotate(q, k, positions)
        group = mixer.heads // mixer.kv_heads
        scores = q @ k.repeat_interleave(group, 1).mT * mixer.scale
        if mixer.softcap is not None:
            scores = mixer.softcap * torch.tanh(scores / mixer.softcap)
        scores = scores.masked_fill(~allowed[layer].repeat_interleave(group, 0)[None], -torch.inf)
        z = scores.softmax(-1) @ v.repeat_interleave(group, 1)
        x = x + mixer.out(z.transpose(1, 2).flatten(2))
        x = x + block.channel(block.norm2(x))
    return model.final_norm(x) @ model.embed.weight.T


def causal(model: Transformer, length: int) -> dict[int, torch.Tensor]:
    """What each layer of the whole model may read: everything before, or what is left of it in its window."""
    at = torch.arange(length)
    distance = at[:, None] - at[None]
    masks = {}
    for layer, block in enumerate(model.blocks):
        reach = distance < (block.mixer.window or length + 1)
        masks[layer] = ((distance >= 0) & reach)[None].repeat(block.mixer.kv_heads, 1, 1)
    return masks
