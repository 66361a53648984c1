"""Policies that judge by attention see the attention that a layer with biased scores really pays."""

from __future__ import annotations

import pytest
import torch

from assay.core.sites import Tap
from assay.core.store import Store
from assay.efficiency.cache.attending import Queries, attention
from assay.efficiency.cache.common import Rows, attention_received
from assay.parts.mixers.softmax import SoftmaxAttention

ALIBI = {"part": "alibi", "options": {}}


@torch.no_grad()
def _read(position, kept=None):
    """What a layer of 4 heads on 2 key-value heads observes of 9 tokens, its store, and the pattern it pays."""
    torch.manual_seed(3)
    mixer = SoftmaxAttention(16, heads=4, kv_heads=2, head_dim=4, position=position).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    state, seen, pattern = mixer.start(2), [], []
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    mixer(x[:, :6], state, positions=torch.arange(6).expand(2, -1))
    if kept is not None:
        state.store.keep(kept(state.store))
    state.observers = (lambda store, observed: seen.append(observed),)
    mixer.tap = Tap("", {"pattern": [lambda _, value: pattern.append(value) or value]})
    mixer(x[:, 6:], state, positions=torch.arange(6, 9).expand(2, -1))
    return seen[0], state.store, pattern[0]


def _uneven(store: Store) -> torch.Tensor:
    flat = store.flat()
    return ((flat.owner > 0) | (flat.positions % 2 == 0)).nonzero()[:, 0]


@pytest.mark.parametrize("kept", [None, _uneven])
def test_attention_received_is_that_of_the_layer(kept):
    seen, store, pattern = _read(ALIBI, kept)
    found = attention_received(
        seen.q, seen.positions, seen.valid, store, scale=seen.scale, softcap=seen.softcap, bias=seen.bias
    )
    rows = pattern.unflatten(1, (2, 2)).mean(2).sum(2).flatten(0, 1)  # owner, key
    wanted = torch.cat([row[:held] for row, held in zip(rows, store.counts, strict=True)])
    torch.testing.assert_close(found, wanted)
    blind = attention_received(seen.q, seen.positions, seen.valid, store, scale=seen.scale, softcap=seen.softcap)
    assert (blind - wanted).abs().max() > 0.01


@pytest.mark.parametrize("kept", [None, _uneven])
def test_each_querys_attention_is_that_of_the_layer(kept):
    seen, store, pattern = _read(ALIBI, kept)
    queries = Queries.of(seen, torch.ones_like(seen.positions, dtype=torch.bool))
    found = attention(queries, store, Rows(store.flat(), store.owners))
    torch.testing.assert_close(found, pattern.unflatten(1, (2, 2)).flatten(0, 1)[..., : found.shape[-1]])


def test_a_layer_without_bias_says_so():
    assert _read(None)[0].bias is None and _read({"part": "rope", "options": {}})[0].bias is None
