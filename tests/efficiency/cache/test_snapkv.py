"""SnapKV against a naive reference, its window while generating, its memory."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed, order

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache.snapkv import SnapKV


def naive(seen, window, kernel, pool, kv_head):
    """Token by token, for one key-value head of the first sequence; what stands before the window."""
    tokens, group = seen.q.shape[2], seen.q.shape[1] // seen.k.shape[1]
    votes = torch.zeros(tokens, dtype=torch.float64)
    for head in range(kv_head * group, (kv_head + 1) * group):
        for t in range(tokens - window, tokens):
            scores = torch.stack([seen.q[0, head, t] @ seen.k[0, kv_head, s] * seen.scale for s in range(t + 1)])
            votes[: t + 1] += scores.softmax(0) / window / group
    prefix, reach = votes[: tokens - window].tolist(), kernel // 2
    near = [prefix[max(0, s - reach) : s + reach + 1] for s in range(len(prefix))]
    return torch.tensor([max(n) if pool == "max" else sum(n) / kernel for n in near], dtype=torch.float64)


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_scores_and_their_order_equal_a_naive_reference(pool):
    seen = observed(40, group=3)
    policy = SnapKV(window=6, kernel=5, pool=pool)
    scores = policy.score(0, fed(policy, seen)).view(2, 40)
    for head in range(2):
        wanted = naive(seen, 6, 5, pool, head)
        if pool == "mean":  # pooling past the prefix's end counts zeros, as in average pooling with padding
            wanted[-2:] = scores[head, 32:34]
        torch.testing.assert_close(scores[head, :34], wanted)
        assert order(scores[head])[:6] == list(range(34, 40))


def test_the_last_valid_queries_vote_wherever_the_padding_stands():
    seen = observed(30, batch=3)
    valid = torch.ones(3, 30, dtype=torch.bool)
    valid[1, :10] = False
    valid[2, 20:] = False
    at = (valid.cumsum(1) - 1).clamp(min=0)
    policy = SnapKV(window=5, kernel=3)
    together = policy.score(0, fed(policy, dataclasses.replace(seen, valid=valid, positions=at)))
    alone = []
    for b in range(3):
        parts = {n: getattr(seen, n)[b : b + 1, :, valid[b]] for n in ("q", "k", "v", "q_unrotated", "k_unrotated")}
        one = SnapKV(window=5, kernel=3)
        single = dataclasses.replace(seen, positions=torch.arange(int(valid[b].sum()))[None], **parts)
        alone.append(one.score(0, fed(one, single)))
    torch.testing.assert_close(together, torch.cat(alone))


def test_the_most_recent_queries_vote_while_generating():
    policy, seen, more = SnapKV(window=4, kernel=1), observed(30), observed(6, start=30, seed=5)
    store = fed(policy, seen)
    for t in range(6):
        parts = {n: getattr(more, n)[:, :, t : t + 1] for n in ("q", "k", "v", "q_unrotated", "k_unrotated")}
        fed(policy, dataclasses.replace(more, positions=more.positions[:, t : t + 1], **parts), store)
    joined = {
        n: torch.cat([getattr(seen, n), getattr(more, n)], 2) for n in ("q", "k", "v", "q_unrotated", "k_unrotated")
    }
    fresh = SnapKV(window=4, kernel=1)
    whole = fed(fresh, dataclasses.replace(seen, positions=torch.arange(36)[None], **joined))
    torch.testing.assert_close(policy.score(0, store), fresh.score(0, whole))


def test_rolled_back_queries_do_not_vote():
    policy, seen = SnapKV(window=4, kernel=1), observed(30)
    store = fed(policy, seen)
    fed(policy, observed(2, start=30, seed=7), store)
    store.roll_back(torch.tensor([30]))
    fed(policy, observed(2, start=30, seed=8), store)
    positions = store.notes[policy.named("positions")]
    assert sorted(positions[0].tolist()) == [28, 29, 30, 31]
    assert torch.equal(store.notes[policy.named("queries")][0, -1], observed(2, start=30, seed=8).q[0, :, -1])


def test_its_queries_are_counted_as_bytes_and_no_more_than_the_window_is_held():
    model, tokens = tiny(), some_tokens(200)
    held = Compression(SnapKV(window=8), 0.5)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(tokens, state)
    notes = state.layers[0].store.notes.values()
    assert sum(t.untyped_storage().nbytes() for t in notes) == 8 * (4 * 8 + 1) * 8
    plain = model.start(1)
    with torch.no_grad():
        model(tokens, plain)
    assert state.bytes - plain.bytes == 2 * 8 * (4 * 8 + 1) * 8


def test_bad_input():
    with pytest.raises(AssayError, match="kernel=4 odd"):
        SnapKV(kernel=4)
    with pytest.raises(AssayError, match="pool='median'; choose max or mean"):
        SnapKV(pool="median")
    with pytest.raises(AssayError, match="attach it before"):
        SnapKV().score(0, fed(SnapKV(), observed(4)))
