"""The law of causal mixers under gradients: states are functional, any cut trains as the whole does."""

from __future__ import annotations

import torch
from tests.contracts.mixing import WIDTH, close, cuts, every_causal_mixer, feed, whole
from tests.contracts.probe import make, randn
from torch import Tensor

from assay.core.mixer import Mixer


def _gradients(mixer: Mixer, x: Tensor, cut: list[int] | None, wrt: list[Tensor]) -> tuple[Tensor, ...]:
    y = whole(mixer, x) if cut is None else feed(mixer, x, mixer.start(len(x)), cut)
    return torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), wrt)


@every_causal_mixer
def test_gradients_of_any_cut_equal_those_of_the_whole(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 83, WIDTH).requires_grad_()
    wrt = [x, *mixer.parameters()]
    wanted = _gradients(mixer, x, None, wrt)
    for cut in cuts(83):
        for got, want in zip(_gradients(mixer, x, cut, wrt), wanted, strict=True):
            close(got, want)


@every_causal_mixer
def test_each_parameter_can_be_trained_alone_through_a_cut(name, chosen):
    mixer, x = make("mixer", name, chosen).requires_grad_(False), randn(2, 20, WIDTH)
    for p in mixer.parameters():
        p.requires_grad_()
        (wanted,), (got,) = _gradients(mixer, x, None, [p]), _gradients(mixer, x, [1, 1, 10, 8], [p])
        p.requires_grad_(False)
        close(got, wanted)


@every_causal_mixer
def test_gradients_are_finite_and_zero_at_padding(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 21, WIDTH)
    valid = torch.arange(21) >= torch.tensor([[4], [19]])
    x[~valid] = torch.nan
    x.requires_grad_()
    for y in (whole(mixer, x, valid), feed(mixer, x, mixer.start(2), [2, 8, 11], valid)):
        into, *others = torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])
        assert not into[~valid].any()
        assert all(g.isfinite().all() for g in (into, *others))


@every_causal_mixer
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
