"""Ada-KV: heads that score alike keep alike, others share by what they win, and the total is exact."""

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.store import Store
from assay.efficiency.cache.adakv import AdaKV
from assay.efficiency.cache.keydiff import KeyDiff
from assay.efficiency.cache.snapkv import SnapKV


def store_of(heads: int, tokens: int, batch: int = 1) -> Store:
    store = Store(batch, heads)
    zeros = torch.zeros(batch, heads, tokens, 2)
    store.append(zeros, zeros, positions=torch.arange(tokens).expand(batch, -1))
    return store


@pytest.mark.parametrize("budget", [1, 7, 50])
def test_equal_heads_have_equal_budgets(budget):
    row = torch.rand(50)
    row[::3] = row[0]  # ties, within heads and between them
    store = store_of(4, 50)
    given = AdaKV(KeyDiff()).allot({0: row.repeat(4)}, {0: store}, torch.tensor([budget]))
    assert given[0].tolist() == [budget] * 4


def test_a_head_keeps_its_share_of_the_highest_scores_above_the_safeguard():
    store = store_of(2, 50)
    scores = torch.cat([torch.arange(50) + 100.0, torch.arange(50) / 100])
    for safeguard, expected in ((0.0, [40, 0]), (0.2, [36, 4]), (1.0, [20, 20])):
        given = AdaKV(KeyDiff(), safeguard).allot({0: scores}, {0: store}, torch.tensor([20]))
        assert given[0].tolist() == expected


def test_no_head_is_given_more_than_it_holds_and_the_rest_goes_to_the_others():
    store = store_of(2, 30)
    store.keep(torch.tensor([*range(5), *range(30, 60)]))
    scores = torch.cat([torch.ones(5), torch.zeros(30)])
    given = AdaKV(KeyDiff()).allot({0: scores}, {0: store}, torch.tensor([10]))
    assert given[0].tolist() == [5, 15]


def test_pins_fit_into_every_head():
    store = store_of(3, 40, batch=2)
    scores = torch.rand(240)
    scores.view(6, 40)[:, -8:] = torch.inf
    given = AdaKV(KeyDiff()).allot({0: scores}, {0: store}, torch.tensor([8, 13]))[0]
    assert given[:3].tolist() == [8, 8, 8] and given[3:].sum() == 39 and given.min() >= 8


def test_sequences_do_not_share():
    store = store_of(2, 40, batch=2)
    scores = torch.cat([torch.rand(80) + 10, torch.rand(80)])
    given = AdaKV(KeyDiff()).allot({0: scores}, {0: store}, torch.tensor([10, 10]))[0]
    assert given.view(2, 2).sum(1).tolist() == [20, 20]


def test_layers_of_one_head_share_and_it_says_so():
    stores = {0: store_of(1, 50), 3: store_of(1, 50)}
    scores = {0: torch.arange(50) + 100.0, 3: torch.zeros(50)}
    given = AdaKV(KeyDiff()).allot(scores, stores, torch.tensor([20]))
    assert (given[0].tolist(), given[3].tolist()) == ([36], [4])
    assert "layers share" in AdaKV(SnapKV()).explain(tiny(kv_heads=1).start(1))
    assert AdaKV(SnapKV()).explain(tiny(kv_heads=2).start(1)) is None


def test_a_safeguard_of_one_is_the_policy_itself():
    model, tokens = tiny(), some_tokens(100)
    kept = []
    for policy in (SnapKV(), AdaKV(SnapKV(), safeguard=1.0)):
        held, state = Compression(policy, "45tok"), model.start(1)
        held.attach(state)
        with torch.no_grad():
            model(tokens, state)
        held.finish_prefill()
        kept.append(state.layers[2].store.flat())
    assert torch.equal(kept[0].positions, kept[1].positions) and torch.equal(kept[0].owner, kept[1].owner)


def test_pins_are_taken_over_unless_given():
    inner = SnapKV(sink=1, recent=9, prompt=True)
    taken, own = AdaKV(inner), AdaKV(inner, sink=3, prompt=False)
    assert (taken.sink, taken.recent, taken.prompt) == (1, 9, True)
    assert (own.sink, own.recent, own.prompt) == (3, 9, False)


def test_bad_input():
    with pytest.raises(AssayError, match="safeguard=2"):
        AdaKV(KeyDiff(), safeguard=2)
