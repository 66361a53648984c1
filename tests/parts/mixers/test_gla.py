"""Gated linear attention: its limits, its gate, its bad inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.parts.mixers.kit import X, heads_of, made, run, share

from assay.core.errors import AssayError
from assay.core.sites import Tap
from assay.parts.mixers.gla import GatedLinearAttention
from assay.parts.mixers.linear_attention import LinearAttention


def heard(mixer, name):
    found = []
    mixer.tap = Tap("", {name: [lambda _, x: found.append(x) or x]})
    run(mixer)
    mixer.tap = None
    return found[0]


@torch.no_grad()
def test_with_gates_of_one_it_reads_what_linear_attention_without_normaliser_reads():
    gated, plain = (
        made(GatedLinearAttention, head_dim=8, expand=1.0, eps=0.0),
        made(LinearAttention, feature="identity", normalise=False),
    )
    share(gated, plain)
    gated.decay_up.weight.zero_()
    gated.decay_up.bias.fill_(800.0)
    assert not heard(gated, "decay").any()
    read = heard(plain, "z") * 8**-0.5
    normed = F.rms_norm(read, (8,), gated.norm, 0.0)
    wanted = gated.out((normed * heads_of(F.silu(gated.gate(X)))).transpose(1, 2).flatten(2))
    torch.testing.assert_close(run(gated), wanted, rtol=0, atol=1e-9)


@torch.no_grad()
def test_the_gate_is_the_sixteenth_root_of_a_sigmoid_for_each_channel():
    mixer = made(GatedLinearAttention)
    gate = torch.sigmoid(mixer.decay_up(mixer.decay_down(X))) ** (1 / 16)
    torch.testing.assert_close(heard(mixer, "decay").exp(), heads_of(gate), rtol=0, atol=1e-12)
    assert gate.std() > 1e-3


@torch.no_grad()
def test_a_closed_gate_leaves_the_token_itself():
    mixer = made(GatedLinearAttention)
    mixer.decay_up.weight.zero_()
    mixer.decay_up.bias.fill_(-1e5)
    alone = torch.cat([run(mixer, X[:, t : t + 1]) for t in range(70)], 1)
    torch.testing.assert_close(run(mixer), alone, rtol=0, atol=1e-11)


def test_bad_inputs_get_one_line():
    for options, why in (
        ({"heads": 3}, "does not divide into 3 heads"),
        ({"heads": 2, "rank": 0}, "rank=0"),
        ({"heads": 2, "temperature": 0.0}, "temperature=0.0"),
    ):
        with pytest.raises(AssayError, match=why):
            GatedLinearAttention(16, **options)
