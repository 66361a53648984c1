"""The law of mixers, for every registered mixer: any cut gives the same outputs, padding leaves no trace, states are values."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from tests.contracts.probe import SIZES, builds, make, randn
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from assay.core.errors import Refused
from assay.core.mixer import Mixer
from assay.core.sites import Tap
from assay.core.state import State

# A law may be relaxed only by name, with the reason.
REFUSES_ROLLBACK: dict[str, str] = {"gated_deltanet": "a recurrent state keeps no past"}

WIDTH = SIZES["width"]
every_mixer = pytest.mark.parametrize(("name", "chosen"), builds("mixer"))


def positions_of(seen: Tensor, valid: Tensor) -> Tensor:
    return (seen[:, None] + valid.cumsum(1) - 1).clamp(min=0)


def whole(mixer: Mixer, x: Tensor, valid: Tensor | None = None) -> Tensor:
    batch, tokens, _ = x.shape
    there = torch.ones(batch, tokens, dtype=torch.bool) if valid is None else valid
    y, state = mixer(x, positions=positions_of(torch.zeros(batch, dtype=torch.long), there), valid=valid)
    assert state is None, "without a state the sequence ends: none comes back"
    return y


def feed(mixer: Mixer, x: Tensor, state: State, cut: list[int], valid: Tensor | None = None) -> Tensor:
    there = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else valid
    out = []
    for piece, ok in zip(x.split(cut, 1), there.split(cut, 1), strict=True):
        y, after = mixer(piece, state, positions=positions_of(state.seen, ok), valid=None if valid is None else ok)
        assert after is state
        out.append(y)
    return torch.cat(out, 1)


def cuts(tokens: int) -> Iterator[list[int]]:
    """All at once, one by one, and at random."""
    yield [tokens]
    yield [1] * tokens
    draw = random.Random(tokens)
    for most in (3, 20, 80):
        sizes: list[int] = []
        while sum(sizes) < tokens:
            sizes.append(min(draw.randint(1, most), tokens - sum(sizes)))
        yield sizes


def close(a: Tensor, b: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@every_mixer
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


@every_mixer
@torch.no_grad()
def test_any_cut_equals_the_whole_in_float32_relative_to_size(name, chosen):
    mixer, x = make("mixer", name, chosen, torch.float32), randn(2, 90, WIDTH, dtype=torch.float32)
    wanted = whole(mixer, x)
    for cut in cuts(90):
        assert (feed(mixer, x, mixer.start(2), cut) - wanted).norm() < 1e-5 * wanted.norm()


@every_mixer
def test_the_future_never_changes_the_past(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(1, 40, WIDTH).requires_grad_()
    y = whole(mixer, x)
    (gradient,) = torch.autograd.grad(y[:, :23].square().sum(), x)
    assert gradient[:, :23].abs().amax(-1).min() > 0
    assert not gradient[:, 23:].any()


@every_mixer
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


@every_mixer
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


@every_mixer
@torch.no_grad()
def test_the_order_of_the_batch_never_matters(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(4, 33, WIDTH)
    order = torch.tensor([2, 0, 3, 1])
    close(whole(mixer, x)[order], whole(mixer, x[order]), 1e-12)


@every_mixer
@torch.no_grad()
def test_a_fork_is_independent(name, chosen):
    mixer, x, other = make("mixer", name, chosen), randn(2, 100, WIDTH), randn(2, 50, WIDTH, seed=2)
    state = mixer.start(2)
    feed(mixer, x[:, :80], state, [80])
    fork = state.fork()
    close(feed(mixer, other, fork, [1, 49]), whole(mixer, torch.cat([x[:, :80], other], 1))[:, 80:])
    close(feed(mixer, x[:, 80:], state, [1, 19]), whole(mixer, x)[:, 80:])
    assert (state.seen[0], fork.seen[0]) == (100, 130)


@every_mixer
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


@every_mixer
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_rollback_forgets_the_last_tokens_or_refuses(name, chosen, padded):
    mixer, x, wrong = make("mixer", name, chosen), randn(2, 120, WIDTH), randn(2, 11, WIDTH, seed=2)
    valid = torch.arange(120) >= torch.tensor([[0], [90]]) if padded else torch.ones(2, 120, dtype=torch.bool)
    state = mixer.start(2)
    feed(mixer, x[:, :100], state, [100], valid[:, :100])
    feed(mixer, wrong, state, [10, 1])
    if name in REFUSES_ROLLBACK:
        with pytest.raises(Refused):
            state.rollback(11)
        return
    state.rollback(11)
    y = feed(mixer, x[:, 100:], state, [1, 19])
    close(y, whole(mixer, x, valid)[:, 100:])
    with pytest.raises(Refused, match="only 30 were seen" if padded else "only 120 were seen"):
        state.rollback(121)


def _gradients(mixer: Mixer, x: Tensor, cut: list[int] | None, wrt: list[Tensor]) -> tuple[Tensor, ...]:
    y = whole(mixer, x) if cut is None else feed(mixer, x, mixer.start(len(x)), cut)
    return torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), wrt)


@every_mixer
def test_gradients_of_any_cut_equal_those_of_the_whole(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 83, WIDTH).requires_grad_()
    wrt = [x, *mixer.parameters()]
    wanted = _gradients(mixer, x, None, wrt)
    for cut in cuts(83):
        for got, want in zip(_gradients(mixer, x, cut, wrt), wanted, strict=True):
            close(got, want)


@every_mixer
def test_each_parameter_can_be_trained_alone_through_a_cut(name, chosen):
    mixer, x = make("mixer", name, chosen).requires_grad_(False), randn(2, 20, WIDTH)
    for p in mixer.parameters():
        p.requires_grad_()
        (wanted,), (got,) = _gradients(mixer, x, None, [p]), _gradients(mixer, x, [1, 1, 10, 8], [p])
        p.requires_grad_(False)
        close(got, wanted)


@every_mixer
def test_gradients_are_finite_and_zero_at_padding(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 21, WIDTH)
    valid = torch.arange(21) >= torch.tensor([[4], [19]])
    x[~valid] = torch.nan
    x.requires_grad_()
    for y in (whole(mixer, x, valid), feed(mixer, x, mixer.start(2), [2, 8, 11], valid)):
        into, *others = torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])
        assert not into[~valid].any()
        assert all(g.isfinite().all() for g in (into, *others))


@every_mixer
def test_detach_cuts_the_graph_and_keeps_the_values(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 30, WIDTH).requires_grad_()
    state = mixer.start(2)
    feed(mixer, x[:, :20], state, [20])
    cut = state.detach()
    assert not any(t.requires_grad for t in cut.tensors())
    y = feed(mixer, x[:, 20:], cut, [10])
    close(y, whole(mixer, x)[:, 20:])
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert not gradient[:, :20].any()
    assert gradient[:, 20:].any()


def _reachable(thing: object, found: dict[int, Tensor]) -> dict[int, Tensor]:
    """Every tensor that an object holds, however deep."""
    if isinstance(thing, Tensor):
        found[id(thing)] = thing
    elif isinstance(thing, dict):
        for value in thing.values():
            _reachable(value, found)
    elif isinstance(thing, list | tuple):
        for value in thing:
            _reachable(value, found)
    elif type(thing).__module__.startswith("assay") or hasattr(thing, "tensors"):
        _reachable(vars(thing), found)
    return found


@every_mixer
@torch.no_grad()
def test_bytes_are_those_of_the_distinct_storages_that_exist(name, chosen):
    mixer, state = make("mixer", name, chosen), None
    for tokens in (1, 7, 40, 120):
        state = mixer.start(2)
        feed(mixer, randn(2, tokens, WIDTH), state, [tokens])
        # counters of one number a sequence are bookkeeping, and do not grow
        held = [t for t in _reachable(state, {}).values() if t.numel() > 2 or t.is_floating_point()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        assert abs(state.bytes - sum(storages.values())) <= 16


@every_mixer
@torch.no_grad()
def test_cost_says_what_there_is_and_what_is_done(name, chosen):
    mixer, x = make("mixer", name, chosen, torch.float32), randn(2, 127, WIDTH, dtype=torch.float32)
    for tokens in (1, 40, 127):
        state = mixer.start(1)
        feed(mixer, x[:1, :tokens], state, [tokens])
        assert mixer.cost(tokens).state_bytes == state.bytes
    cost = mixer.cost(40)
    assert cost.parameters == sum(p.numel() for p in mixer.parameters())
    with FlopCounterMode(
        display=False
    ) as counter:  # two sequences: torch does not count one row's matrix-vector products
        feed(mixer, x[:, :40], mixer.start(2), [1] * 40)
    # an explicit score matrix also covers keys that have left the window
    assert 0.95 * cost.flops <= counter.get_total_flops() / 2 <= (2 if "softcap" in chosen else 1.05) * cost.flops


@every_mixer
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_bfloat16_weights_stay_near_float32(name, chosen, stored):
    exact = make("mixer", name, chosen, torch.float32)
    rounded = make("mixer", name, chosen, torch.bfloat16)
    x = randn(2, 40, WIDTH, dtype=stored)
    wanted = whole(exact, x.float())
    for y in (whole(rounded, x), feed(rounded, x, rounded.start(2), [30, 1, 9])):
        assert y.dtype == stored
        assert y.isfinite().all()
        assert (y.float() - wanted).norm() < 0.1 * wanted.norm()


@every_mixer
@torch.no_grad()
def test_every_declared_site_fires_and_listening_changes_nothing(name, chosen):
    mixer, x, heard = make("mixer", name, chosen), randn(2, 30, WIDTH), set()
    wanted = whole(mixer, x)

    def listen(where: str, value: Tensor) -> Tensor:
        heard.add(where)
        return value

    mixer.tap = Tap("", {site: [listen] for site in mixer.sites})
    close(whole(mixer, x), wanted, 1e-12)
    close(feed(mixer, x, mixer.start(2), [20, 1, 9]), wanted, 1e-12)
    assert heard == set(mixer.sites)
