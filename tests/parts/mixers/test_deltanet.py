"""DeltaNet and Kimi Delta Attention as the two ends of Gated DeltaNet: no decay, and a decay for each channel."""

from __future__ import annotations

import pytest
import torch
from tests.parts.mixers.kit import X, made, run, share

from assay.core.errors import AssayError
from assay.parts.mixers.delta import chunked, step_by_step
from assay.parts.mixers.deltanet import DeltaNet
from assay.parts.mixers.gated_deltanet import GatedDeltaNet
from assay.parts.mixers.kda import KDA


@torch.no_grad()
def test_gated_deltanet_that_keeps_all_and_gates_nothing_is_deltanet():
    plain, gated = made(DeltaNet), made(GatedDeltaNet, eps=1e-5)
    share(plain, gated)
    gated.decay.weight.zero_()
    gated.decay_bias.fill_(-800.0)
    gated.gate.forward = lambda x: torch.full((*x.shape[:2], 16), 1.2784645427610738, dtype=x.dtype)  # where silu is 1
    torch.testing.assert_close(run(gated), run(plain), rtol=0, atol=1e-11)


def silu_as_sigmoid(logit: torch.Tensor) -> torch.Tensor:
    """What silu must be given to return sigmoid(logit), by Newton's method."""
    wanted, x = logit.sigmoid(), logit.sigmoid() + 0.3
    for _ in range(60):
        s = x.sigmoid()
        x = x - (x * s - wanted) / (s + x * s * (1 - s))
    return x


@torch.no_grad()
def test_kda_with_equal_channel_decays_is_gated_deltanet():
    channels, heads = made(KDA), made(GatedDeltaNet, eps=1e-5)
    share(channels, heads)
    one_for_each_head = channels.decay_up.weight.view(2, 8, 8)[:, :1].expand(2, 8, 8)
    channels.decay_up.weight.copy_(one_for_each_head.reshape(16, 8))
    channels.decay_bias.copy_(heads.decay_bias.repeat_interleave(8))
    heads.decay.weight.copy_(channels.decay_up.weight[::8] @ channels.decay_down.weight)
    heads.gate.forward = lambda x: silu_as_sigmoid(channels.gate_up(channels.gate_down(x)))
    torch.testing.assert_close(run(channels), run(heads), rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_decay_of_one_channel_reaches_its_row_of_the_memory_alone():
    mixer = made(KDA)
    with torch.no_grad():
        mixer.decay_up.weight.zero_()
        mixer.decay_bias.fill_(-800.0)
        kept = mixer.decays(X)
        mixer.decay_bias[3] = 2.0
    changed = mixer.decays(X)
    assert not kept.any()
    assert (changed != 0).any(0).any(0).nonzero().tolist() == [[0, 3]]


@pytest.mark.parametrize("tokens", [1, 17, 127])
@pytest.mark.parametrize("chunk", [1, 16, 24, 64])
def test_chunks_equal_single_steps_where_every_channel_decays_by_itself(tokens, chunk):
    g = torch.Generator().manual_seed(tokens)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(randn(2, 3, tokens, 8), dim=-1) for _ in "qk")
    inputs = [
        q,
        k,
        randn(2, 3, tokens, 5),
        -randn(2, 3, tokens, 8).exp(),
        randn(2, 3, tokens).sigmoid(),
        randn(2, 3, 8, 5),
    ]
    inputs = [t.requires_grad_() for t in inputs]
    found = []
    for rule in (step_by_step, chunked):
        read, memory = rule(*inputs, chunk)
        found.append((read, memory, *torch.autograd.grad(read.sin().sum() + memory.square().sum(), inputs)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [DeltaNet, KDA])
def test_bad_inputs_get_one_line(kind):
    for options, why in (
        ({"heads": 3}, "width 16 does not divide into 3 heads: give head_dim"),
        ({"heads": 2, "taps": 0}, "taps=0"),
        ({"heads": 2, "expand": 0.01}, "leaves no value"),
    ):
        with pytest.raises(AssayError, match=why):
            kind(16, **options)
