"""States are values: copied, picked from, shortened, counted; and what cannot be done changes nothing."""

import pytest
import torch
from tests.core.tiny import tiny, tokens

from assay.core.errors import Refused
from assay.core.state import AttentionState


@pytest.fixture(scope="module")
def model():
    return tiny()


def run(model, text, state=None, **options):
    with torch.no_grad():
        return model(text, state or model.start(len(text)), **options)


def test_seen_counts_valid_tokens_and_stays_when_the_store_is_cut(model):
    valid = torch.arange(20) >= torch.tensor([[0], [13]])
    _, state = run(model, tokens(2, 20), valid=valid)
    assert state.seen.tolist() == [20, 7]
    store = state.growing()[0]
    store.keep(torch.arange(5))
    assert sum(store.counts) == 5
    assert state.seen.tolist() == [20, 7]


def test_only_layers_without_a_window_grow(model):
    assert sorted(model.start(1).growing()) == [0, 2]


def test_bytes_count_shared_storages_once(model):
    _, state = run(model, tokens(2, 20))
    assert state.bytes == sum(layer.bytes for layer in state.layers)
    fork = state.fork()
    assert fork.bytes == state.bytes
    shared = state.detach()
    both = {
        t.untyped_storage().data_ptr() for s in (state, shared) for layer in s.layers for t in layer.store.tensors()
    }
    assert len(both) == sum(len(layer.store.tensors()) for layer in state.layers)


def test_a_window_drops_what_no_query_can_reach(model):
    _, state = run(model, tokens(2, 200))
    windowed, growing = state.layers[1], state.layers[0]
    assert set(growing.store.counts) == {200}
    assert set(windowed.store.counts) == {6 + AttentionState.SLACK}
    assert windowed.store.flat().positions.max() == 199
    assert windowed.bytes < growing.bytes / 4


def test_a_refused_rollback_changes_nothing(model):
    text, following = tokens(2, 200), tokens(2, 5, seed=8)
    _, state = run(model, text)
    _, untouched = run(model, text)
    with pytest.raises(Refused, match="older keys are no longer held"):
        state.rollback(150)
    with pytest.raises(Refused, match="only 200 were seen"):
        state.rollback(201)
    with pytest.raises(Refused, match="cannot roll back -1 tokens"):
        state.rollback(-1)
    assert state.seen.tolist() == [200, 200]
    torch.testing.assert_close(run(model, following, state)[0], run(model, following, untouched)[0], rtol=0, atol=0)


def test_a_short_sequence_beside_a_long_one_may_roll_back(model):
    """What the long one has lost is not what the short one needs."""
    text = tokens(2, 200)
    valid = torch.arange(200) >= torch.tensor([[0], [195]])
    _, state = run(model, text, valid=valid)
    state.rollback(3)
    assert state.seen.tolist() == [197, 2]
    logits, _ = run(model, text[:, 197:], state)
    wanted, _ = run(model, text, valid=valid)
    torch.testing.assert_close(logits, wanted[:, 197:], rtol=0, atol=1e-10)


def test_rolling_back_everything_is_a_fresh_start(model):
    _, state = run(model, tokens(2, 30))
    state.rollback(30)
    text = tokens(2, 9, seed=5)
    torch.testing.assert_close(run(model, text, state)[0], run(model, text)[0], rtol=0, atol=1e-12)


def test_observers_stay_with_their_run(model):
    heard = []
    state = model.start(1)
    state.layers[0].observers = (lambda store, seen: heard.append(seen.positions.tolist()),)
    run(model, tokens(1, 3), state)
    fork = state.fork()
    run(model, tokens(1, 2), fork)
    state.rollback(1)
    run(model, tokens(1, 1), state)
    assert heard == [[[0, 1, 2]], [[2]]]


def test_observers_see_queries_and_keys_before_and_after_rotation(model):
    heard, mixer = [], model.blocks[0].mixer
    state = model.start(2)
    state.layers[0].observers = (lambda store, seen: heard.append(seen),)
    run(model, tokens(2, 7), state)
    (seen,) = heard
    q, k = mixer.position.rotate(seen.q_unrotated, seen.k_unrotated, seen.positions)
    torch.testing.assert_close((q, k), (seen.q, seen.k))
    assert not torch.allclose(seen.k, seen.k_unrotated)
    torch.testing.assert_close(state.layers[0].store.flat().k.view(2, 2, 7, 6), seen.k)
    assert seen.scale == mixer.scale


def test_bytes_can_be_known_beforehand(model):
    for count in (1, 16, 17, 200):
        _, state = run(model, tokens(1, count))
        for layer in state.layers:
            assert layer.bytes == AttentionState.bytes_after(count, 2, 6, layer.window, torch.float64)
