"""NestedKV: its limit is KeyDiff, its invariances, its anchors and ranks written out, its budgets."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import tiny
from tests.efficiency.cache.stores import fed, observed, order

from assay.core.errors import AssayError
from assay.core.store import Store
from assay.efficiency.cache.keydiff import KeyDiff
from assay.efficiency.cache.nestedkv import NestedKV

SMALL = {"blocks": 16, "window": 12}


def scores(policy: NestedKV, seen) -> torch.Tensor:
    return policy.score(0, fed(policy, seen)).view(-1, seen.k.shape[2])


@pytest.mark.parametrize("ties", [False, True])
def test_only_the_global_scale_without_a_gate_orders_like_keydiff(ties):
    seen = observed(60, batch=2)
    if ties:
        seen.k[:, :, 1::4] = seen.k[:, :, :1]
    mine = scores(NestedKV(weights=(1, 0, 0), gate=None, **SMALL), seen)
    other = KeyDiff().score(0, fed(KeyDiff(), seen)).view(-1, 60)
    for a, b in zip(mine, other, strict=True):
        assert order(a) == order(b)


@pytest.mark.parametrize("keys", ["before", "after"])
@pytest.mark.parametrize("mixing", ["variance", "kurtosis"])
def test_scores_ignore_the_length_of_each_key_and_a_common_rotation(mixing, keys):
    seen = observed(80)
    policy = NestedKV(mixing=mixing, keys=keys, **SMALL)
    plain = scores(policy, seen)
    stretch = torch.rand(1, 2, 80, 1, dtype=torch.float64) * 5 + 0.1
    turn = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    changed = dataclasses.replace(seen, k=seen.k * stretch @ turn, k_unrotated=seen.k_unrotated * stretch @ turn)
    torch.testing.assert_close(scores(policy, changed), plain)


def test_keys_before_and_after_rotation_are_different_scores_and_only_before_is_stored():
    seen = observed(50)
    before, after = NestedKV(keys="before", **SMALL), NestedKV(keys="after", **SMALL)
    assert fed(after, seen).remembered() == []
    store = fed(before, seen)
    assert torch.equal(store.column(before.named("unrotated")), seen.k_unrotated[0].flatten(0, 1))
    swapped = dataclasses.replace(seen, k=seen.k_unrotated, k_unrotated=seen.k)
    torch.testing.assert_close(scores(before, seen), scores(after, swapped))
    assert not torch.allclose(scores(before, seen), scores(after, seen))


def test_the_score_written_out():
    seen = observed(40, kv_heads=1)
    seen.k[0, 0, 25] *= -1
    unit = seen.k[0, 0] / seen.k[0, 0].norm(dim=-1, keepdim=True)

    def cosine(a, b):
        return float(a @ b / a.norm() / b.norm())

    anomalies = torch.zeros(3, 40, dtype=torch.float64)
    for t in range(40):
        anchors = (unit.mean(0), unit[t // 16 * 16 : t // 16 * 16 + 16].mean(0), unit[max(0, t - 11) : t + 1].mean(0))
        anomalies[:, t] = torch.tensor([1 - cosine(unit[t], anchor) for anchor in anchors])
    ranks = torch.stack([(row[:, None] > row[None]).sum(1) / 39 for row in anomalies])
    spread = anomalies.var(1, correction=0)
    mixed = ((spread / spread.mean()).softmax(0)[:, None] * ranks).sum(0)
    z = (anomalies - anomalies.mean(1, keepdim=True)) / anomalies.std(1, correction=0, keepdim=True)
    routed = torch.where(z.amax(0) > 1.5, ranks.gather(0, z.argmax(0)[None])[0], mixed)
    assert 0 < (z.amax(0) > 1.5).sum() < 20
    torch.testing.assert_close(scores(NestedKV(gate=1.5, **SMALL), seen)[0], routed)


def test_a_local_episode_stands_out_in_its_block_though_not_globally():
    """Two long topics; one key of the first topic lies within the second."""
    made = torch.Generator().manual_seed(0)
    seen = observed(128, kv_heads=1)
    topics = torch.eye(8, dtype=torch.float64)[:2].repeat_interleave(64, 0)
    topics[100] = topics[0]
    seen.k.copy_(topics + 0.05 * torch.randn(128, 8, generator=made, dtype=torch.float64))
    # beside it only the first key of the second topic is new in its surroundings
    assert order(scores(NestedKV(**SMALL), seen)[0])[:2] == [64, 100]
    assert order(KeyDiff().score(0, fed(KeyDiff(), seen))).index(100) > 10


def filled(heads: int, tokens: int = 60) -> Store:
    store = Store(1, heads)
    zeros = torch.zeros(1, heads, tokens, 2)
    store.append(zeros, zeros, positions=torch.arange(tokens)[None])
    return store


def test_budgets_follow_the_mass_above_a_common_threshold_over_a_floor():
    one, none = torch.linspace(0.5, 1, 60), torch.zeros(60)
    for floor, expected in ((0.2, [36, 4]), (1.0, [20, 20])):
        given = NestedKV(floor=floor).allot({0: torch.cat([one, none])}, {0: filled(2)}, torch.tensor([20]))
        assert given[0].tolist() == expected
    assert NestedKV(floor=0.0).allot({0: torch.cat([one, none])}, {0: filled(2)}, torch.tensor([20]))[0].sum() == 40


def test_equal_heads_have_equal_budgets_and_pins_are_set_apart():
    row = torch.rand(60)
    row[-10:] = torch.inf
    given = NestedKV().allot({0: row.repeat(3)}, {0: filled(3)}, torch.tensor([17]))
    assert given[0].tolist() == [17, 17, 17]
    unequal = torch.cat([row, row / 100, row])
    given = NestedKV().allot({0: unequal}, {0: filled(3)}, torch.tensor([17]))[0]
    assert given.sum() == 51 and given[1] == given.min() >= 11


def test_with_one_head_layers_share_and_it_says_so():
    given = NestedKV().allot(
        {0: torch.linspace(0.5, 1, 60), 5: torch.zeros(60)}, {0: filled(1), 5: filled(1)}, torch.tensor([20])
    )
    assert (given[0].tolist(), given[5].tolist()) == ([36], [4])
    assert "layers share" in NestedKV().explain(tiny(kv_heads=1).start(1))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"blocks": 0}, "blocks, window and temperature must be positive"),
        ({"floor": 1.2}, r"floor=1\.2"),
        ({"weights": (1, 2)}, "give three"),
        ({"mixing": "entropy"}, "mixing='entropy'; choose variance or kurtosis"),
        ({"keys": "raw"}, "choose after or before"),
    ],
)
def test_bad_input(options, why):
    with pytest.raises(AssayError, match=why):
        NestedKV(**options)
