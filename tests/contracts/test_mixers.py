"""The law of causal mixers: any cut gives the same outputs, padding leaves no trace, states are values."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.mixing import WIDTH, close, cuts, every_causal_mixer, feed, whole
from tests.contracts.probe import make, randn
from tests.contracts.under_test import registered

from assay.core.errors import Refused

# A law may be relaxed only by name, with the reason.
RECURRENT = ["gated_deltanet", "linear_attention", "retnet", "gla", "deltanet", "kda", "mamba2", "mlstm"]
REFUSES_ROLLBACK: dict[str, str] = dict.fromkeys(RECURRENT, "a recurrent state keeps no past")


@every_causal_mixer
@pytest.mark.parametrize("tokens", [1, 2, 17, 127])
@torch.no_grad()
def test_any_cut_equals_the_whole(name, chosen, tokens):
    mixer, x = make("mixer", name, chosen), randn(2, tokens, WIDTH)
    wanted = whole(mixer, x)
    assert wanted.shape == x.shape
    assert wanted.abs().max() > 1e-3
    for cut in cuts(tokens):
        state = mixer.start(2)
        close(feed(mixer, x, state, cut), wanted)
        assert state.seen.tolist() == [tokens, tokens]


@every_causal_mixer
@torch.no_grad()
def test_any_cut_equals_the_whole_in_float32_relative_to_size(name, chosen):
    mixer, x = make("mixer", name, chosen, torch.float32), randn(2, 90, WIDTH, dtype=torch.float32)
    wanted = whole(mixer, x)
    for cut in cuts(90):
        assert (feed(mixer, x, mixer.start(2), cut) - wanted).norm() < 1e-5 * wanted.norm()


@every_causal_mixer
def test_the_future_never_changes_the_past(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(1, 40, WIDTH).requires_grad_()
    y = whole(mixer, x)
    (gradient,) = torch.autograd.grad(y[:, :23].square().sum(), x)
    assert gradient[:, :23].abs().amax(-1).min() > 0
    assert not gradient[:, 23:].any()


@every_causal_mixer
@pytest.mark.parametrize("places", ["left", "anywhere"])
@torch.no_grad()
def test_padding_leaves_no_trace(name, chosen, places):
    mixer, tokens, lengths = make("mixer", name, chosen), 103, [103, 37, 1, 90]
    rows = [randn(1, length, WIDTH, seed=length) for length in lengths]
    alone = [whole(mixer, row) for row in rows]
    valid = torch.zeros(4, tokens, dtype=torch.bool)
    for row, length in enumerate(lengths):
        chosen_places = torch.randperm(tokens, generator=torch.Generator().manual_seed(row))[:length]
        valid[row, torch.arange(tokens)[-length:] if places == "left" else chosen_places] = True
    x = torch.full((4, tokens, WIDTH), torch.nan, dtype=torch.float64)
    x[valid] = torch.cat([row[0] for row in rows])
    for y in [whole(mixer, x, valid), *(feed(mixer, x, mixer.start(4), cut, valid) for cut in cuts(tokens))]:
        assert not y[~valid].any(), "outputs at invalid tokens are zero"
        for row, wanted in enumerate(alone):
            close(y[row][valid[row]], wanted[0])


@every_causal_mixer
@torch.no_grad()
def test_a_piece_that_is_all_padding_is_legal_first_and_in_between(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 30, WIDTH)
    state, padding = mixer.start(2), torch.full((2, 3, WIDTH), torch.nan, dtype=torch.float64)
    none = torch.zeros(2, 3, dtype=torch.bool)
    pieces = []
    for piece in x.split([1, 12, 17], 1):
        assert not feed(mixer, padding, state, [3], none).any()
        assert not feed(mixer, padding[:, :1], state, [1], none[:, :1]).any()
        pieces.append(feed(mixer, piece, state, [piece.shape[1]]))
    close(torch.cat(pieces, 1), whole(mixer, x))
    assert state.seen.tolist() == [30, 30]


@every_causal_mixer
@torch.no_grad()
def test_the_order_of_the_batch_never_matters(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(4, 33, WIDTH)
    order = torch.tensor([2, 0, 3, 1])
    close(whole(mixer, x)[order], whole(mixer, x[order]), 1e-12)


@every_causal_mixer
@torch.no_grad()
def test_a_fork_is_independent(name, chosen):
    mixer, x, other = make("mixer", name, chosen), randn(2, 100, WIDTH), randn(2, 50, WIDTH, seed=2)
    state = mixer.start(2)
    feed(mixer, x[:, :80], state, [80])
    fork = state.fork()
    close(feed(mixer, other, fork, [1, 49]), whole(mixer, torch.cat([x[:, :80], other], 1))[:, 80:])
    close(feed(mixer, x[:, 80:], state, [1, 19]), whole(mixer, x)[:, 80:])
    assert (state.seen[0], fork.seen[0]) == (100, 130)


@every_causal_mixer
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_reorder_picks_sequences(name, chosen, padded):
    mixer, x, more = make("mixer", name, chosen), randn(3, 90, WIDTH), randn(4, 20, WIDTH, seed=2)
    valid = torch.arange(90) >= torch.tensor([[0], [60], [3]]) if padded else None
    state, index = mixer.start(3), torch.tensor([2, 0, 0, 1])
    feed(mixer, x, state, [50, 40], valid)
    picked = feed(mixer, more, state.reorder(index), [7, 1, 12])
    direct = mixer.start(4)
    feed(mixer, x[index], direct, [90], None if valid is None else valid[index])
    close(picked, feed(mixer, more, direct, [20]))


@every_causal_mixer
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_rollback_forgets_the_last_tokens_or_refuses(name, chosen, padded):
    mixer, x, wrong = make("mixer", name, chosen), randn(2, 120, WIDTH), randn(2, 11, WIDTH, seed=2)
    valid = torch.arange(120) >= torch.tensor([[0], [90]]) if padded else torch.ones(2, 120, dtype=torch.bool)
    state = mixer.start(2)
    feed(mixer, x[:, :100], state, [100], valid[:, :100])
    feed(mixer, wrong, state, [10, 1])
    if name in REFUSES_ROLLBACK or not registered(name):
        try:
            state.rollback(11)
        except Refused:
            return
        assert name not in REFUSES_ROLLBACK
    else:
        state.rollback(11)
    y = feed(mixer, x[:, 100:], state, [1, 19])
    close(y, whole(mixer, x, valid)[:, 100:])
    with pytest.raises(Refused, match="only 30 were seen" if padded else "only 120 were seen"):
        state.rollback(121)
