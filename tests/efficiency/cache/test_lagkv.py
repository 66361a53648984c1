"""LagKV against its formula partition by partition; what stands apart; shrunken and empty partitions."""

import pytest
import torch
from tests.efficiency.cache.stores import fed, observed, order

from assay.core.errors import AssayError
from assay.efficiency.cache.lagkv import LagKV


def formula(rows, lag, sink):
    """r of every token of one head that has a full partition behind it, by position; `rows` are keys or values in order."""
    found = {}
    for begin in range(sink, len(rows) - 2 * lag + 1, lag):
        mine, after = rows[begin : begin + lag], rows[begin + lag : begin + 2 * lag]
        low, high = after.amin(0), after.amax(0)
        uneven = ((mine - low) / (high - low)).std(1)
        for t, weight in enumerate(uneven.softmax(0).tolist()):
            found[begin + t] = weight
    return found


def test_ranks_within_a_partition_follow_the_formula():
    policy, seen = LagKV(lag=8, sink=3), observed(3 + 8 * 4 + 5)
    scores = policy.score(0, fed(policy, seen)).view(2, 40)
    for head in range(2):
        keys, values = (formula(rows[0, head], 8, 3) for rows in (seen.k, seen.v))
        assert sorted(keys) == list(range(3, 27))
        for begin in (3, 11, 19):
            part = range(begin, begin + 8)
            wanted = sorted(part, key=lambda t: -(keys[t] + values[t]))
            assert [begin + t for t in order(scores[head, begin : begin + 8])] == wanted
            torch.testing.assert_close(scores[head, wanted], -torch.arange(8).double() / 8)


def test_all_partitions_keep_equally_many():
    policy, seen = LagKV(lag=8, sink=0, recent=0), observed(48)
    store = fed(policy, seen)
    store.keep(policy.keep(0, store, policy.score(0, store), torch.tensor([8 + 15, 8 + 20])))
    flat = store.flat()
    for head, each in ((0, 3), (1, 4)):
        part = flat.positions[flat.owner == head] // 8
        assert torch.bincount(part).tolist() == [each] * 5 + [8]


def test_sinks_and_what_has_nothing_behind_it_stand_above_the_latest_first():
    policy = LagKV(lag=8, sink=2)
    scores = policy.score(0, fed(policy, observed(2 + 16 + 3, kv_heads=1)))
    assert order(scores)[:13] == [1, 0, *range(20, 9, -1)]


def test_a_short_text_is_a_window():
    policy = LagKV(lag=128, sink=0)
    assert order(policy.score(0, fed(policy, observed(30, kv_heads=1)))) == list(range(29, -1, -1))
    assert LagKV(lag=8, sink=50).score(0, fed(LagKV(), observed(10))).isfinite().all()


def test_a_partition_that_lost_all_its_tokens_is_passed_over():
    policy, seen = LagKV(lag=4, sink=0), observed(16, kv_heads=1)
    store = fed(policy, seen)
    store.keep(torch.tensor([0, 1, 2, 3, *range(8, 16)]))
    scores = policy.score(0, store)
    values = []
    for rows in (seen.k[0, 0], seen.v[0, 0]):
        low, high = rows[8:12].amin(0), rows[8:12].amax(0)
        values.append(((rows[:4] - low) / (high - low)).std(1).softmax(0))
    assert order(scores[:4]) == order(values[0] + values[1])


def test_a_range_of_a_single_token_gives_finite_scores():
    policy, seen = LagKV(lag=4, sink=0), observed(16)
    store = fed(policy, seen)
    flat = store.flat()
    store.keep(((flat.positions < 5) | (flat.positions >= 8)).nonzero()[:, 0])
    assert policy.score(0, store).isfinite().all()


def test_bad_input():
    with pytest.raises(AssayError, match="lagkv: lag=1"):
        LagKV(lag=1)
