"""Ranking per owner, and the driver that holds a cache to its budget."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.tiny_models import some_tokens, tiny

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.policy import Policy, growing_heads, rank_per_owner, top_per_owner


class Oldest(Policy):
    """Keeps the earliest tokens; counts how often it is asked."""

    asked = 0

    def score(self, layer, store):
        self.asked += 1
        return -store.flat().positions.double()


def running(policy: Policy, budget, tokens: int = 60, **options):
    model = tiny()
    held, state = Compression(policy, budget, **options), model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(some_tokens(tokens), state)
    return model, state, held


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=30),
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
)
def test_ranks_and_tops_equal_sorting_each_owner_by_itself(entries, budget):
    entries.sort(key=lambda e: e[0])
    owner = torch.tensor([e[0] for e in entries], dtype=torch.long)
    scores = torch.tensor([float(e[1]) for e in entries])
    ranks, kept = torch.zeros(len(entries), dtype=torch.long), []
    for o in range(4):
        mine = sorted((i for i, e in enumerate(entries) if e[0] == o), key=lambda i: (-entries[i][1], i))
        kept += mine[: budget[o]]
        for place, i in enumerate(mine):
            ranks[i] = place
    assert torch.equal(rank_per_owner(scores, owner, 4), ranks)
    assert top_per_owner(scores, owner, torch.tensor(budget)).tolist() == sorted(kept)


def test_scores_are_asked_for_only_when_something_must_go():
    model, state, held = running(Oldest(recent=4), "40tok", slack=5)
    held.finish_prefill()
    assert held.policy.asked == 2
    for step in range(1, 13):
        with torch.no_grad():
            model(some_tokens(1, seed=step), state)
        held.hold()
        assert 35 <= state.layers[0].store.counts[0] <= 40
    # five tokens are freed at a time, and six must come before the ceiling is passed again
    assert held.policy.asked == 2 * (1 + 2)


def test_freeing_ahead_never_reaches_into_the_pins():
    model, state, held = running(Oldest(sink=4, recent=32), "36tok")
    held.finish_prefill()
    for step in range(5):
        with torch.no_grad():
            model(some_tokens(1, seed=step), state)
        held.hold()
        assert state.layers[0].store.counts == [36, 36]


def test_a_budget_that_the_pins_will_outgrow_is_refused_before_anything_is_generated():
    _, state, held = running(Oldest(sink=4, recent=32), "30tok", tokens=20)
    with pytest.raises(
        AssayError, match=r"budget 30tok leaves 30 tokens \(context: 20\) but 36 are pinned \(sink=4, recent=32"
    ):
        held.finish_prefill()
    _, _, held = running(Oldest(recent=10, prompt=True), "65tok", tokens=60)
    with pytest.raises(AssayError, match="70 are pinned"):
        held.finish_prefill()


def test_the_length_of_a_context_to_come_can_set_the_ratio():
    _, state, held = running(Oldest(recent=4, prompt=True), 0.5, tokens=60)
    held.finish_prefill(context=torch.tensor([160]))
    assert held.ceiling == [80] and state.layers[0].store.counts == [60, 60]


def test_the_peak_is_what_was_held_before_anything_went():
    model, state, held = running(Oldest(recent=4), "20tok")
    before = state.bytes
    held.finish_prefill()
    assert state.bytes < before == held.peak_bytes
    with torch.no_grad():
        model(some_tokens(300), state)
    grown = state.bytes
    held.hold()
    assert held.peak_bytes == grown > before


def test_order_of_calls():
    with pytest.raises(AssayError, match="attach"):
        Compression(Oldest(), 0.5).finish_prefill()
    _, _, held = running(Oldest(), 0.9)
    with pytest.raises(AssayError, match=r"hold\(\) before finish_prefill"):
        held.hold()


def test_growing_layers_are_those_without_a_window():
    assert growing_heads(tiny(windows=(None, 8, None), kv_heads=2).start(1)) == [2, 2]
    assert growing_heads(tiny(windows=(8,), kv_heads=2).start(1)) == []


def test_salt_reaches_every_policy_of_a_chain():
    outer = Oldest()
    outer.inner = Oldest()
    outer.reseed(7)
    assert [p.salt for p in outer.chain()] == [7, 7] and outer.tag != outer.inner.tag


def test_generating_under_a_policy_leaves_no_gradient_behind():
    model, state, held = running(Oldest(recent=4), "20tok")
    held.finish_prefill()
    model(some_tokens(1), state)
    held.hold()
    assert not any(t.requires_grad for t in state.layers[0].store.arrays.values())
