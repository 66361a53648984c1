"""H2O's accumulated column against explicit attention, over prefill and decoding, padding, groups and soft caps."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache import common
from assay.efficiency.cache.h2o import H2O


def explicit(seen, softcap=None):
    """Column sums of the causal attention matrix, averaged over each group's heads."""
    batch, heads, tokens, _ = seen.q.shape
    group = heads // seen.k.shape[1]
    scores = seen.q @ seen.k.repeat_interleave(group, 1).mT * seen.scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    mask = torch.ones(tokens, tokens).tril().bool()
    if seen.valid is not None:
        mask = mask & seen.valid[:, None, None]
    pattern = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0)
    if seen.valid is not None:
        pattern = pattern * seen.valid[:, None, :, None]
    return pattern.sum(2).unflatten(1, (-1, group)).mean(2)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("at_a_time", [2**23, 200])
def test_the_column_is_the_attention_received(softcap, at_a_time, monkeypatch):
    monkeypatch.setattr(common, "SCORES", at_a_time)
    seen = dataclasses.replace(observed(40, batch=2, kv_heads=2, group=3), softcap=softcap)
    policy = H2O()
    scores = policy.score(0, fed(policy, seen))
    torch.testing.assert_close(scores, explicit(seen, softcap).flatten())


def test_scores_too_large_to_exponentiate():
    seen = observed(40)
    seen = dataclasses.replace(seen, q=seen.q * 2000)
    policy = H2O()
    torch.testing.assert_close(policy.score(0, fed(policy, seen)), explicit(seen).flatten())


def test_padding_neither_gives_nor_receives():
    seen = observed(30, batch=2)
    valid = torch.arange(30) >= torch.tensor([[0], [12]])
    at = (valid.cumsum(1) - 1).clamp(min=0)
    seen = dataclasses.replace(seen, valid=valid, positions=at)
    policy = H2O()
    scores = policy.score(0, fed(policy, seen))
    torch.testing.assert_close(scores, explicit(seen)[valid[:, None].expand(-1, 2, -1)])


def test_it_accumulates_in_pieces_as_in_one_go():
    policy, seen = H2O(), observed(40)
    whole = policy.score(0, fed(policy, seen))
    store = None
    for begin, end in ((0, 13), (13, 14), (14, 40)):
        parts = {n: getattr(seen, n)[:, :, begin:end] for n in ("q", "k", "v", "q_unrotated", "k_unrotated")}
        store = fed(policy, dataclasses.replace(seen, positions=seen.positions[:, begin:end], **parts), store)
    torch.testing.assert_close(policy.score(0, store), whole)


def test_what_uneven_heads_receive_in_small_pages_equals_what_they_receive_in_one():
    """The same kept sets, in two layouts."""
    policy, seen, more = H2O(), observed(300, seed=1), observed(5, start=300, seed=2)
    kept = torch.cat([torch.arange(0, 300, 1), torch.arange(300, 600, 9)])
    found = []
    for page in (16, 512):
        store = fed(policy, seen)
        store.page = page
        store.keep(kept)
        found.append(policy.score(0, fed(policy, more, store)))
        assert store.dense == (page == 512)
    torch.testing.assert_close(*found)


def test_half_of_the_budget_is_the_latest_tokens():
    policy, seen = H2O(sink=0, recent=0), observed(40, kv_heads=1)
    store = fed(policy, seen)
    scores = policy.score(0, store)
    kept = policy.keep(0, store, scores, torch.tensor([10])).tolist()
    heavy = scores[:35].topk(5).indices.sort().values.tolist()
    assert kept == [*heavy, *range(35, 40)]


def test_attention_while_generating_decides_too():
    model, tokens = tiny(windows=(None,)), some_tokens(90)
    held = Compression(H2O(sink=1, recent=2), 0.5)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(tokens[:, :60], state)
        held.finish_prefill()
        before = held.policy.score(0, state.layers[0].store).sum()
        model(tokens[:, 60:61], state)
    # one query per head hands out a total of one to each key-value head
    assert held.policy.score(0, state.layers[0].store).sum() == pytest.approx(float(before) + 2)


def test_bad_input():
    with pytest.raises(AssayError, match=r"local=1\.5"):
        H2O(local=1.5)
    store = fed(H2O(), observed(4))
    with pytest.raises(AssayError, match="attach it before"):
        H2O().score(0, store)
