"""PAGE: its two ends, one decision a sequence before decoding, the signal written out, thresholds from signals."""

import dataclasses
import itertools
import math

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.build import build
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.efficiency.cache.adakv import AdaKV
from assay.efficiency.cache.page import Page, agreement, area_under_curve, threshold_of
from assay.efficiency.cache.snapkv import SnapKV

PINS = {"sink": 2, "recent": 5}


@torch.no_grad()
def run(policy: Policy, tokens: torch.Tensor, more: torch.Tensor, budget: str = "0.4", valid=None):
    """Logits of some steps after a compressed context, the running compression, and the state."""
    model = tiny(windows=(None, 8, None, None))
    state = model.start(len(tokens))
    held = Compression(policy, budget).attach(state)
    model(tokens, state, valid=valid, logits="none")
    held.finish_prefill()
    rows = []
    for t in range(more.shape[1]):
        rows.append(model(more[:, t : t + 1], state)[0][:, 0])
        held.hold()
    return torch.stack(rows, 1), held, state


def counts(state) -> list[list[int]]:
    return [list(store.counts) for store in state.growing().values()]


def test_a_threshold_below_all_signals_is_the_policy_itself_and_one_above_the_whole_cache():
    tokens, more = some_tokens(100), some_tokens(8, seed=3)
    base, _, evicted = run(SnapKV(**PINS), tokens, more)
    whole, _, _ = run(SnapKV(**PINS), tokens, more, budget="1")
    for threshold in (None, -2.0):
        given, held, state = run(Page(SnapKV(**PINS), threshold), tokens, more)
        assert torch.equal(given, base) and counts(state) == counts(evicted) and held.spared == [False]
    given, held, state = run(Page(SnapKV(**PINS), 2.0), tokens, more)
    assert torch.equal(given, whole) and held.spared == [True]
    assert counts(state) == [[108, 108]] * 3 != counts(evicted)


def test_each_sequence_of_a_padded_batch_is_gated_by_its_own_signal():
    rows = [some_tokens(n, seed=n) for n in (90, 61, 75, 83)]
    valid = torch.arange(90) >= 90 - torch.tensor([r.shape[1] for r in rows])[:, None]
    batch = torch.cat([torch.nn.functional.pad(r, (90 - r.shape[1], 0)) for r in rows])
    more = some_tokens(6, seed=9)
    alone = []
    for row in rows:
        _, held, state = run(Page(SnapKV(**PINS)), row, more)
        alone.append(float(held.policy.signals(state.growing())))
    between = sum(sorted(alone)[1:3]) / 2
    given, held, state = run(Page(SnapKV(**PINS), between), batch, more.expand(4, -1), valid=valid)
    torch.testing.assert_close(held.policy.signals(state.growing()), torch.tensor(alone, dtype=torch.float64))
    assert held.spared == [signal < between for signal in alone] and sum(held.spared) == 2
    for b, row in enumerate(rows):
        expected, own, single = run(Page(SnapKV(**PINS), between), row, more)
        assert own.spared == [held.spared[b]]
        torch.testing.assert_close(given[b : b + 1], expected, rtol=0, atol=1e-9)
        kept = [c[2 * b : 2 * b + 2] for c in counts(state)]
        assert kept == counts(single)
        assert (kept[0] == [row.shape[1] + 6] * 2) == held.spared[b]


def test_what_is_generated_changes_neither_signal_nor_decision():
    tokens = some_tokens(100)
    _, held, state = run(Page(SnapKV(**PINS), 2.0), tokens, some_tokens(1))
    before = held.policy.signals(state.growing())
    for seed in range(3):
        _, held, state = run(Page(SnapKV(**PINS), float(before) + 1e-9), tokens, some_tokens(20, seed=seed))
        assert torch.equal(held.policy.signals(state.growing()), before) and held.spared == [True]
        _, held, _ = run(Page(SnapKV(**PINS), float(before)), tokens, some_tokens(20, seed=seed))
        assert held.spared == [False]


def test_its_queries_are_held_until_the_context_is_in_and_no_longer():
    tokens = some_tokens(100)
    _, _, bare = run(SnapKV(**PINS), tokens, some_tokens(1))
    _, _, state = run(Page(SnapKV(**PINS), -2.0), tokens, some_tokens(1))
    assert state.bytes - bare.bytes == 3 * 8  # one number a layer


def test_a_context_fed_in_pieces_stays_whole_until_it_is_in():
    model, tokens = tiny(), some_tokens(90)
    for threshold, spared in ((2.0, [True]), (-2.0, [False])):
        state = model.start(1)
        held = Compression(Page(SnapKV(**PINS), threshold), "30tok").attach(state)
        with torch.no_grad():
            model(tokens[:, :50], state, logits="none")
            held.finish_piece(torch.tensor([90]))
            assert counts(state) == [[50, 50]] * 2
            model(tokens[:, 50:], state, logits="none")
        held.finish_prefill()
        assert held.spared == spared
        assert counts(state) == [[90, 90] if spared[0] else [30, 30]] * 2


def test_other_wrappers_pass_the_decision_on():
    tokens, more = some_tokens(100), some_tokens(3)
    for policy in (AdaKV(Page(SnapKV(**PINS), 2.0)), Page(AdaKV(SnapKV(**PINS)), 2.0)):
        _, held, state = run(policy, tokens, more)
        assert held.spared == [True] and counts(state) == [[103, 103]] * 3


def pattern(heads: int, tokens: int, seed: int) -> torch.Tensor:
    return torch.rand(heads, tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_agreement_is_the_mean_overlap_of_pairs_whatever_their_order():
    read = pattern(5, 60, 0)
    top = [set(row.topk(6).indices.tolist()) for row in read]
    wanted = [len(a & b) / len(a | b) for a, b in itertools.combinations(top, 2)]
    assert float(agreement(read, 0.1)) == pytest.approx(sum(wanted) / len(wanted))
    rows = torch.nn.functional.normalize(read, dim=1)
    wanted = [float(rows[a] @ rows[b]) for a, b in itertools.combinations(range(5), 2)]
    assert float(agreement(read, 0.1, "cosine")) == pytest.approx(sum(wanted) / len(wanted))
    for how in ("jaccard", "cosine"):
        for order in ([3, 1, 4, 0, 2], [4, 3, 2, 1, 0]):
            torch.testing.assert_close(agreement(read[order], 0.1, how), agreement(read, 0.1, how))
        assert float(agreement(read[:1], 0.1, how)) == 1
        assert float(agreement(read[:1].expand(3, -1), 0.1, how)) == pytest.approx(1)


def test_the_signal_is_early_minus_late_and_zero_where_all_layers_agree_equally():
    policy, stores = Page(SnapKV()), {}
    for layer in range(6):
        stores[layer] = fed(SnapKV(), observed(4))
        stores[layer].notes[policy.named("agreement")] = torch.tensor([float(layer), 0.25])
    assert policy.signals(stores).tolist() == [0.5 - 4.5, 0.0]
    assert policy.signals({0: stores[1], 1: stores[3], 2: stores[5]}).tolist() == [1 - 5, 0.0]


def test_heads_that_read_alike_in_the_first_layer_alone_give_a_signal():
    """Read off stores filled by hand: queries of all heads the same in layer 0, all different in layer 1."""
    policy, stores = Page(SnapKV(), window=4, share=0.1), {}
    for layer in (0, 1):
        seen = observed(80, kv_heads=1, group=4, seed=layer)
        if layer == 0:
            seen = dataclasses.replace(seen, q=seen.q[:, :1].expand(-1, 4, -1, -1).clone())
        stores[layer] = fed(SnapKV(), seen)
        policy.queries.take(layer, stores[layer], seen)
        policy.finish_prefill(layer, stores[layer])
    assert float(policy.signals(stores)) > 0.5


def test_what_stands_in_the_window_itself_does_not_count():
    """Agreement written out head by head: top tokens among those before the last four."""
    policy, seen = Page(SnapKV(), window=4, share=0.1), observed(60, kv_heads=2, group=2)
    store = fed(SnapKV(), seen)
    policy.queries.take(0, store, seen)
    policy.finish_prefill(0, store)
    keys = seen.k[0].repeat_interleave(2, 0)
    scores = (seen.q[0, :, 56:] @ keys.mT * seen.scale).masked_fill(~torch.ones(60, 60).tril().bool()[56:], -torch.inf)
    wanted = agreement(scores.softmax(-1).sum(1)[:, :56], 0.1)
    torch.testing.assert_close(store.notes[policy.named("agreement")], wanted[None])


def test_otsu_and_the_largest_gap_part_two_groups():
    two = [0.1, 0.12, 0.15, 0.5, 0.52, 0.55, 0.6]
    assert threshold_of(two) == pytest.approx(0.325) == threshold_of(two, "gap")
    outlier = [0.0, 0.01, 0.02, 0.03, 0.3, 0.31, 0.32, 0.33, 0.65]
    assert threshold_of(outlier, "gap") == pytest.approx(0.49)
    assert threshold_of(outlier) == pytest.approx(0.165)
    assert threshold_of([0.3, 0.3, 0.3]) is None


def test_a_signal_that_does_not_tell_harm_is_refused():
    signals = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert area_under_curve(signals, [True, True, False, False, False, False]) == 1
    assert area_under_curve(signals, [True, False, True, False, False, False]) == pytest.approx(7 / 8)
    assert area_under_curve([0.5] * 4, [True, True, False, False]) == 0.5
    assert math.isnan(area_under_curve(signals, [False] * 6))
    assert threshold_of(signals, harmed=[True, True, False, False, False, False]) == pytest.approx(0.35)
    assert threshold_of(signals, harmed=[False, False, False, False, True, True]) is None


def test_bad_input():
    for expression, match in (
        ("page(snapkv, share=0)", "share=0"),
        ("page(snapkv, window=0)", "window=0"),
        ("page(snapkv, agreement=rank)", "choose jaccard or cosine"),
        ("page(snapkv, threshold='high')", "threshold='high' does not fit"),
    ):
        with pytest.raises(AssayError, match=match):
            build(expression, "policy")
    with pytest.raises(AssayError, match="signals of two prompts"):
        threshold_of([0.1])
    with pytest.raises(AssayError, match="2 signals of 1 prompts"):
        area_under_curve([0.1, 0.2], [True])
    with pytest.raises(AssayError, match="attach it before"):
        Page(SnapKV(), 0.0).spares({0: fed(SnapKV(), observed(4))})


def test_it_says_that_it_may_hold_more_than_the_budget():
    model = tiny(windows=(None, None))
    assert Page(SnapKV()).explain(model.start(1)) is None
    assert "more than the budget" in Page(SnapKV(), 0.1).explain(model.start(1))
    assert "no early and late" in Page(SnapKV(), 0.1).explain(tiny(windows=(None, 8)).start(1))
