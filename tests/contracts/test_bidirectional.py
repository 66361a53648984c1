"""The law of bidirectional mixers: a sequence at once, every token for every other, padding leaves no trace, no state."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.mixing import WIDTH, close, every_bidirectional_mixer, whole
from tests.contracts.probe import make, randn

from assay.core.errors import Refused
from assay.core.sites import Tap


@every_bidirectional_mixer
def test_every_token_reads_every_other(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(1, 17, WIDTH).requires_grad_()
    y = whole(mixer, x)
    assert y.shape == x.shape
    for t in (0, 8, 16):
        (gradient,) = torch.autograd.grad(y[:, t].square().sum(), x, retain_graph=True)
        assert gradient.abs().amax(-1).min() > 0


@every_bidirectional_mixer
@pytest.mark.parametrize("places", ["left", "right", "anywhere"])
def test_padding_leaves_no_trace_nor_gradient(name, chosen, places):
    mixer, tokens, lengths = make("mixer", name, chosen), 40, [40, 1, 17, 2]
    rows = [randn(1, length, WIDTH, seed=length) for length in lengths]
    at = torch.arange(tokens)
    valid = torch.zeros(4, tokens, dtype=torch.bool)
    for row, length in enumerate(lengths):
        shuffled = torch.randperm(tokens, generator=torch.Generator().manual_seed(row))
        valid[row, {"left": at[-length:], "right": at[:length], "anywhere": shuffled[:length]}[places]] = True
    x = torch.full((4, tokens, WIDTH), torch.nan, dtype=torch.float64)
    x[valid] = torch.cat([row[0] for row in rows])
    x.requires_grad_()
    y = whole(mixer, x, valid)
    assert not y[~valid].any(), "outputs at invalid tokens are zero"
    for row, alone in enumerate(rows):
        close(y[row][valid[row]], whole(mixer, alone)[0])
    into, *others = torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])
    assert not into[~valid].any()
    assert all(g.isfinite().all() for g in (into, *others))


@every_bidirectional_mixer
@torch.no_grad()
def test_a_sequence_without_valid_tokens_is_legal_and_zero(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 5, WIDTH)
    valid = torch.tensor([[False] * 5, [True] * 5])
    x[0] = torch.nan
    y = whole(mixer, x, valid)
    assert not y[0].any()
    close(y[1:], whole(mixer, x[1:]))


@every_bidirectional_mixer
@torch.no_grad()
def test_the_order_of_the_batch_never_matters(name, chosen):
    mixer, x, order = make("mixer", name, chosen), randn(4, 33, WIDTH), torch.tensor([2, 0, 3, 1])
    close(whole(mixer, x)[order], whole(mixer, x[order]), 1e-12)


@every_bidirectional_mixer
def test_a_state_is_refused(name, chosen):
    mixer = make("mixer", name, chosen)
    with pytest.raises(Refused):
        mixer.start(1)
    with pytest.raises(Refused):
        mixer(randn(1, 3, WIDTH), object(), positions=torch.arange(3)[None])


@every_bidirectional_mixer
@torch.no_grad()
def test_what_it_says_of_itself_is_so(name, chosen):
    mixer, x, heard = make("mixer", name, chosen), randn(2, 30, WIDTH), set()
    assert mixer.cost(30).parameters == sum(p.numel() for p in mixer.parameters())
    assert mixer.cost(30).state_bytes == 0
    wanted = whole(mixer, x)
    mixer.tap = Tap("", {site: [lambda where, value: heard.add(where) or value] for site in mixer.sites})
    close(whole(mixer, x), wanted, 1e-12)
    assert heard == set(mixer.sites)


@every_bidirectional_mixer
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_bfloat16_weights_stay_near_float32(name, chosen, stored):
    exact, rounded = make("mixer", name, chosen, torch.float32), make("mixer", name, chosen, torch.bfloat16)
    x = randn(2, 40, WIDTH, dtype=stored)
    y, wanted = whole(rounded, x), whole(exact, x.float())
    assert y.dtype == stored
    assert (y.float() - wanted).norm() < 0.1 * wanted.norm()
