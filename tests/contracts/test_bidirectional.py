"""The law of bidirectional mixers, for every registered one: padding leaves no trace, and a state is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from assay.core import registry
from assay.core.errors import Refused
from assay.core.mixer import Mixer
from assay.core.sites import Tap
from tests.contracts.probe import SIZES, builds, make, randn

WIDTH = SIZES["width"]
every_mixer = pytest.mark.parametrize(
    ("name", "chosen"), [case for case in builds("mixer") if not registry.get(case.values[0], "mixer").causal]
)


def read(mixer: Mixer, x: Tensor, valid: Tensor | None = None) -> Tensor:
    there = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else valid
    y, state = mixer(x, positions=(there.cumsum(1) - 1).clamp(min=0), valid=valid)
    assert state is None
    return y


@every_mixer
@torch.no_grad()
def test_padding_anywhere_leaves_no_trace(name, chosen):
    mixer, lengths = make("mixer", name, chosen), [31, 7, 1, 20]
    rows = [randn(1, length, WIDTH, seed=length) for length in lengths]
    valid = torch.zeros(4, 31, dtype=torch.bool)
    for row, length in enumerate(lengths):
        valid[row, torch.randperm(31, generator=torch.Generator().manual_seed(row))[:length]] = True
    x = torch.full((4, 31, WIDTH), torch.nan, dtype=torch.float64)
    x[valid] = torch.cat([row[0] for row in rows])
    y = read(mixer, x, valid)
    assert not y[~valid].any()
    for row, alone in enumerate(rows):
        torch.testing.assert_close(y[row][valid[row]], read(mixer, alone)[0], rtol=0, atol=1e-9)


@every_mixer
def test_every_token_reads_every_other(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(1, 12, WIDTH).requires_grad_()
    (gradient,) = torch.autograd.grad(read(mixer, x)[:, 3].square().sum(), x)
    assert gradient.abs().amax(-1).min() > 0


@every_mixer
@torch.no_grad()
def test_a_sequence_without_valid_tokens_is_legal_and_zero(name, chosen):
    mixer, x = make("mixer", name, chosen), randn(2, 5, WIDTH)
    valid = torch.tensor([[True] * 5, [False] * 5])
    y = read(mixer, x, valid)
    assert not y[1].any()
    torch.testing.assert_close(y[:1], read(mixer, x[:1]), rtol=0, atol=1e-9)


@every_mixer
def test_a_state_is_refused(name, chosen):
    mixer = make("mixer", name, chosen)
    with pytest.raises(Refused):
        mixer.start(1)
    with pytest.raises(Refused):
        mixer(randn(1, 3, WIDTH), object(), positions=torch.arange(3)[None])


@every_mixer
@torch.no_grad()
def test_every_declared_site_fires_and_listening_changes_nothing(name, chosen):
    mixer, x, heard = make("mixer", name, chosen), randn(2, 9, WIDTH), set()
    wanted = read(mixer, x)

    def listen(where: str, value: Tensor) -> Tensor:
        heard.add(where)
        return value

    mixer.tap = Tap("", {site: [listen] for site in mixer.sites})
    torch.testing.assert_close(read(mixer, x), wanted, rtol=0, atol=1e-12)
    assert heard == set(mixer.sites)
