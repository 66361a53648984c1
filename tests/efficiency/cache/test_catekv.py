"""CateKV: variation where it is known, who counts as consistent, how budgets follow, and what is really held."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.build import build
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.store import Store
from assay.efficiency.cache.catekv import CateKV, consistent_heads, masses, shares, variation
from assay.efficiency.cache.snapkv import SnapKV

PINS = {"sink": 2, "recent": 5}


@torch.no_grad()
def compressed(policy, budget, tokens, model=None):
    model = tiny() if model is None else model
    state = model.start(len(tokens))
    held = Compression(policy, budget).attach(state)
    model(tokens, state, logits="none")
    held.finish_prefill()
    return state, held


def counts(state) -> list[list[int]]:
    return [list(store.counts) for store in state.growing().values()]


def alternating(high: float, low: float, queries: int = 48, tokens: int = 100, window: int = 4) -> torch.Tensor:
    """Rows that give `high` or `low` to the first five tokens by turns of a window, and the rest to the others evenly."""
    pattern = torch.zeros(queries, tokens, dtype=torch.float64)
    for t in range(queries):
        mass = high if t < window or (t // window) % 2 else low
        pattern[t, :5], pattern[t, 5:52] = mass / 5, (1 - mass) / 47
    return pattern


def test_a_head_that_never_changes_has_no_variation_and_one_that_alternates_the_closed_form():
    asking, positions = torch.arange(52, 100), torch.arange(100)
    for high, low in ((0.9, 0.9), (0.8, 0.2), (0.6, 0.0)):
        mass = masses(alternating(high, low), asking, positions, 4, 5 / 52)
        mass = mass[:10]  # as many high as low
        assert mass.tolist() == pytest.approx([high, low] * 5)
        assert float(variation(mass)) == pytest.approx((high - low) / (high + low), abs=1e-12)
    assert float(variation(torch.zeros(4))) == torch.inf == float(variation(torch.full((4,), 0.4), 0.5))
    assert float(variation(torch.full((4,), 0.5), 0.5)) == 0
    assert float(variation(torch.tensor([0.3]))) == 0


def test_what_the_reference_chose_is_followed_and_nothing_else():
    asking, positions = torch.arange(52, 100), torch.arange(100)
    pattern = alternating(0.9, 0.9)
    pattern[24:, :5], pattern[24:, 60:65] = 0, 0.18  # later it reads five others, that were not there
    mass = masses(pattern, asking, positions, 4, 5 / 52)
    assert mass.tolist() == pytest.approx([0.9] * 5 + [0.0] * 6)
    assert masses(pattern[:7], asking[:7], positions, 4, 0.1).shape == (0,)


def test_a_key_value_head_varies_as_its_worst_query_head():
    policy, seen = CateKV(SnapKV(), window=4, steps=5, mean=0.0), observed(80, kv_heads=2, group=2)
    steady = seen.q[:, :, -1:].expand(-1, -1, 80, -1).clone()
    steady[:, 3] = seen.q[:, 3]  # one head of the second group goes on changing
    store = Store(1, 2)
    alike = torch.zeros_like(seen.k)
    alike[:, :, :20] = seen.k[:, :, :20] * 3  # keys that matter are all in before the reference window
    seen = dataclasses.replace(seen, q=steady, k=alike)
    fed(policy, seen, store)
    policy.finish_prefill(0, store)
    first, second = store.notes[policy.named("variation")][0].tolist()
    assert first < 0.1 < second and policy.split({0: store}).tolist() == [[True, False]]
    assert not policy.queries.holds(store)


def test_heads_that_give_little_to_what_they_chose_are_never_consistent():
    """Random weights look everywhere: no head gives half of its attention to a twentieth of the tokens."""
    state, held = compressed(CateKV(SnapKV(**PINS), 1.0, window=8), "0.5", some_tokens(200))
    assert not bool(held.policy.split(state.growing()).any()) and counts(state) == [[100, 100]] * 2


def test_adaptive_heads_keep_all_and_consistent_ones_share_what_is_left():
    few = torch.tensor([[True, False, True, False]])
    held, pins = torch.full((1, 4), 100), torch.full((1, 4), 7)
    for budget, expected in ((100, [100, 100]), (70, [40, 100]), (60, [20, 100]), (50, [15.6, 84.4]), (7, [7, 7])):
        given = shares(few, held, pins, torch.tensor([budget]), 0.2)[0].tolist()
        assert given == pytest.approx([expected[0], expected[1]] * 2)
    one = torch.tensor([[True, False, False, False]])
    assert shares(one, held, pins, torch.tensor([90]), 0.2)[0].tolist() == pytest.approx([60, 100, 100, 100])
    for everyone in (torch.ones_like(few), torch.zeros_like(few)):
        assert shares(everyone, held, pins, torch.tensor([30]), 0.2).tolist() == [[30.0] * 4]


def test_a_share_of_zero_or_one_is_the_policy_itself():
    tokens = some_tokens(100)
    plain, _ = compressed(SnapKV(**PINS), "0.4", tokens)
    for share in (0.0, 1.0):
        state, _ = compressed(CateKV(SnapKV(**PINS), share, mean=0), "0.4", tokens)
        for mine, other in zip(state.growing().values(), plain.growing().values(), strict=True):
            assert torch.equal(mine.flat().positions, other.flat().positions)


def test_what_is_held_is_what_the_formula_says_and_the_rest_is_really_freed():
    model, tokens = tiny(kv_heads=4, windows=(None, 8, None)), some_tokens(512)
    split = ((0, 1), (0, 2), (2, 0), (2, 3))
    state, _ = compressed(CateKV(SnapKV(window=8, **PINS), consistent=split), 0.625, tokens, model)
    assert counts(state) == [[512, 128, 128, 512], [128, 512, 512, 128]]
    whole = model.start(1)
    with torch.no_grad():
        model(tokens, whole, logits="none")
    for store, full in zip(state.growing().values(), whole.growing().values(), strict=True):
        for name in ("k", "v", "positions"):
            mine, all_ = (s.arrays[name].untyped_storage().nbytes() for s in (store, full))
            assert mine == all_ * (4 + 4 * 0.25) / 8


def test_heads_of_all_layers_are_ranked_together_and_each_sequence_has_its_own_split():
    rows = [some_tokens(200, seed=n) for n in (1, 2)]
    state, held = compressed(CateKV(SnapKV(**PINS), window=8, mean=0), "0.5", torch.cat(rows))
    split = held.policy.split(state.growing())
    assert split.sum(1).tolist() == [2, 2]
    for b, row in enumerate(rows):
        alone, own = compressed(CateKV(SnapKV(**PINS), window=8, mean=0), "0.5", row)
        assert own.policy.split(alone.growing())[0].tolist() == split[b].tolist()
        assert [c[2 * b : 2 * b + 2] for c in counts(state)] == counts(alone)


def test_a_calibration_text_gives_the_split_that_its_own_prompt_would_have_and_freezes_it():
    model, text = tiny(), some_tokens(200, seed=5)
    heads = consistent_heads(model, text, 0.25, window=8, mean=0)
    _, held = compressed(CateKV(SnapKV(**PINS), 0.25, window=8, mean=0), "0.5", text)
    assert len(heads) == 1
    frozen = CateKV(SnapKV(**PINS), consistent=heads)
    state, held = compressed(frozen, "0.5", some_tokens(100))
    marked = [(layer, head) for layer in (0, 2) for head in range(2)]
    assert held.policy.split(state.growing())[0].tolist() == [one in heads for one in marked]
    assert not any(name.startswith(frozen.tag) for s in state.growing().values() for name in s.remembered())
    written = build(f"catekv(snapkv, consistent=[[{heads[0][0]}, {heads[0][1]}]])", "policy")
    assert written.consistent == frozenset(heads)


def test_a_context_in_pieces_is_split_once_it_is_in():
    model, tokens = tiny(), some_tokens(200)
    state = model.start(1)
    held = Compression(CateKV(SnapKV(**PINS), window=8, mean=0), "60tok").attach(state)
    with torch.no_grad():
        model(tokens[:, :120], state, logits="none")
        held.finish_piece(torch.tensor([200]))
        assert counts(state) == [[60, 60]] * 2
        model(tokens[:, 120:], state, logits="none")
    held.finish_prefill()
    assert sum(map(sum, counts(state))) == 240 and counts(state) != [[60, 60]] * 2


def test_whole_layers_where_there_is_one_head_each_and_it_says_so():
    state, held = compressed(CateKV(SnapKV(**PINS), window=8, mean=0), "0.5", some_tokens(200), tiny(kv_heads=1))
    (first,), (second,) = counts(state)
    assert {first, second} != {100} and first + second == 200
    assert "whole layers" in held.policy.explain(tiny(kv_heads=1).start(1))
    assert held.policy.explain(tiny().start(1)) is None


def test_bad_input():
    for expression, match in (
        ("catekv(snapkv, share=2)", "share=2 is no share"),
        ("catekv(snapkv, floor=-1)", "floor=-1"),
        ("catekv(snapkv, steps=1)", "steps=1"),
        ("catekv(snapkv, consistent=[[1]])", "pairs of a layer and a head|does not fit"),
    ):
        with pytest.raises(AssayError, match=match):
            build(expression, "policy")
    with pytest.raises(AssayError, match=r"no layer and head \(1, 0\) grows here"):
        compressed(CateKV(SnapKV(**PINS), consistent=((1, 0),)), "0.5", some_tokens(100))
    with pytest.raises(AssayError, match="attach it before"):
        CateKV(SnapKV()).split({0: fed(SnapKV(), observed(4))})
