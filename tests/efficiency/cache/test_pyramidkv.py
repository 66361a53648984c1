"""PyramidKV: budgets fall along a line from layer to layer, their mean is the budget, and flat is the policy itself."""

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.store import Store
from assay.efficiency.cache.keydiff import KeyDiff
from assay.efficiency.cache.pyramidkv import PyramidKV
from assay.efficiency.cache.snapkv import SnapKV


def stores_of(layers: int, tokens: int, *, heads: int = 2, batch: int = 1) -> dict[int, Store]:
    found = {}
    for layer in range(layers):
        found[2 * layer] = store = Store(batch, heads)
        zeros = torch.zeros(batch, heads, tokens, 2)
        store.append(zeros, zeros, positions=torch.arange(tokens).expand(batch, -1))
    return found


def allotted(policy, stores, budget, pins=0):
    scores = {}
    for layer, store in stores.items():
        at = store.flat().positions
        scores[layer] = torch.rand(len(at)).masked_fill(at < pins, torch.inf)
    return [given.tolist() for given in policy.allot(scores, stores, torch.tensor(budget)).values()]


def test_layers_fall_along_the_papers_line():
    # beta = 20 of a free budget of 100: 195, 147.5, 100, 52.5, 5 and the total is 500
    given = allotted(PyramidKV(KeyDiff()), stores_of(5, 400), [100])
    assert [layer[0] for layer in given] in ([195, 148, 100, 52, 5], [195, 147, 100, 53, 5])
    assert sum(map(sum, given)) == 100 * 2 * 5


def test_pins_come_before_the_line():
    given = allotted(PyramidKV(KeyDiff(), beta=2), stores_of(3, 400), [60], pins=20)
    assert given == [[20 + 60] * 2, [20 + 40] * 2, [20 + 20] * 2]


def test_the_first_layer_keeps_no_more_than_it_holds_and_the_last_gets_the_rest():
    given = allotted(PyramidKV(KeyDiff()), stores_of(3, 80), [60])
    assert given == [[80] * 2, [60] * 2, [40] * 2]


def test_a_flat_pyramid_is_the_policy_itself():
    model, tokens, kept = tiny(), some_tokens(100), []
    for policy in (SnapKV(), PyramidKV(beta=1), PyramidKV()):
        held, state = Compression(policy, "45tok"), model.start(1)
        held.attach(state)
        with torch.no_grad():
            model(tokens, state)
        held.finish_prefill()
        kept.append([store.flat().positions.tolist() for store in state.growing().values()])
    assert kept[0] == kept[1] != kept[2]


def test_sequences_of_a_batch_have_pyramids_of_their_own():
    given = allotted(PyramidKV(KeyDiff(), beta=4), stores_of(2, 100, batch=2), [40, 20])
    assert given == [[70, 70, 35, 35], [10, 10, 5, 5]]


def test_layers_of_unlike_heads_share_an_exact_total():
    stores = stores_of(2, 100) | {9: stores_of(1, 100, heads=4)[0]}
    given = allotted(PyramidKV(KeyDiff(), beta=5), stores, [20])
    assert sum(map(sum, given)) == 20 * 8
    assert given[0][0] > given[1][0] > given[2][0]


def test_one_layer_has_nobody_to_share_with_and_it_says_so():
    assert allotted(PyramidKV(KeyDiff()), stores_of(1, 50), [10]) == [[10, 10]]
    assert "no other layers" in PyramidKV().explain(tiny(windows=(None, 8)).start(1))
    assert PyramidKV().explain(tiny(windows=(None, None)).start(1)) is None


def test_bad_input():
    with pytest.raises(AssayError, match=r"beta=0\.5"):
        PyramidKV(beta=0.5)
