"""Planted heads look where they are told to, and match before any training."""

import pytest
import torch

from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.errors import AssayError
from assay.core.sites import record
from assay.core.transformer import Transformer
from assay.training import initialise, look_back, plant_induction

ROPE = {"part": "rope", "options": {}}


def made(heads: int = 4, kv_heads: int = 4, *, position: dict | None = ROPE, bias: bool = True) -> Transformer:
    shared = {"heads": heads, "kv_heads": kv_heads, "bias": bias}
    channel = Spec("gated", {"hidden": 64})
    first = BlockConfig(Spec("softmax", {**shared, "position": position}), channel)
    second = BlockConfig(Spec("softmax", shared), channel)
    return initialise(Transformer(TransformerConfig(100, 128, (first, second), tied=False)), 0)


def tokens(length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randperm(100, generator=generator)[:length] for _ in range(64)])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_look_as_far_back_as_they_are_told(kv_heads: int) -> None:
    model = made(kv_heads=kv_heads)
    look_back(model.blocks[0].mixer, [2, 1])
    with record(model, "blocks.0.attn.pattern") as tape:
        model(tokens(90))
    pattern = tape["blocks.0.attn.pattern"]
    assert pattern[:, 0].diagonal(-2, -2, -1).mean() > 0.9
    assert pattern[:, 1].diagonal(-1, -2, -1).mean() > 0.9
    assert pattern[:, 2].diagonal(-1, -2, -1).mean() < 0.2


@pytest.mark.parametrize(("query", "key"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_every_head_of_the_second_block_finds_what_followed_before(query: int, key: int, kv_heads: int) -> None:
    plain = made(kv_heads=kv_heads)
    before = on_the_match(plain, query, key)
    after = on_the_match(plant_induction(plain, 0, query=query, key=key), query, key)
    chance = 1 / 41
    assert (before < 2 * chance).all()
    assert (after > 3 * chance).all()


def on_the_match(model: Transformer, query: int, key: int) -> torch.Tensor:
    """What each head of the second block gives the right place, for a text that ends `query` places after token 10 came again."""
    text = tokens(40)
    text = torch.cat([text, text[:, 10 : 11 + query]], 1)
    with record(model, "blocks.1.attn.pattern") as tape:
        model(text)
    return tape["blocks.1.attn.pattern"][:, :, -1, 10 + key].mean(0)


def test_without_positions_or_biases_it_is_refused() -> None:
    with pytest.raises(AssayError, match="biases"):
        look_back(made(bias=False).blocks[0].mixer, [1])
    with pytest.raises(AssayError, match="positions"):
        plant_induction(made(position=None), 0, query=0, key=1)
