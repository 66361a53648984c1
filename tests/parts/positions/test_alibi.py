"""ALiBi's slopes are the paper's, and its bias falls with the distance."""

from __future__ import annotations

import pytest
import torch
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

from assay.core.sites import Tap
from assay.core.state import AttentionState
from assay.parts.mixers.bidirectional import Bidirectional
from assay.parts.mixers.softmax import SoftmaxAttention
from assay.parts.positions.alibi import Alibi, slopes


def test_the_slopes_of_the_paper():
    assert slopes(8).tolist() == [2**-i for i in range(1, 9)]
    assert slopes(1).tolist() == [2**-8]
    torch.testing.assert_close(slopes(16)[:3], torch.tensor([2**-0.5, 2**-1, 2**-1.5]))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 25, 32, 112])
def test_slopes_of_any_number_of_heads_are_those_of_transformers(heads):
    assert len(slopes(heads)) == heads
    torch.testing.assert_close(slopes(heads), _get_alibi_slopes(heads, torch.device("cpu")), rtol=1e-5, atol=0)


def test_the_bias_is_the_slope_times_the_distance_on_both_sides():
    bias = Alibi(8).bias(torch.tensor([[5, 9]]), torch.tensor([0, 5, 9]).expand(1, 2, 3))
    assert bias.shape == (1, 2, 2, 3)
    assert bias[0, 0].tolist() == [[-5 / 16, 0, -4 / 16], [-9 / 16, -4 / 16, 0]]
    assert bias[0, 1, 0].tolist() == [-5 / 256, 0, -4 / 256]


def test_nothing_is_rotated():
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8)
    turned = Alibi(8).rotate(q, k, torch.arange(3)[None])
    assert turned[0] is q and turned[1] is k


@torch.no_grad()
def test_with_equal_keys_attention_is_a_softmax_of_distances():
    mixer = SoftmaxAttention(8, heads=2, head_dim=4, position={"part": "alibi", "options": {}}).double()
    for parameter in (mixer.q.weight, mixer.k.weight):
        parameter.zero_()
    torch.nn.init.normal_(mixer.v.weight)
    heard = []
    mixer.tap = Tap("", {"pattern": [lambda _, x: heard.append(x) or x]})
    state = mixer.start(1)
    assert isinstance(state, AttentionState)
    mixer(torch.randn(1, 6, 8).double(), state, positions=torch.arange(6)[None])
    distance = torch.arange(5, -1, -1).double()
    for head, slope in enumerate((2**-4, 2**-8)):
        torch.testing.assert_close(heard[0][0, head, 5], (-slope * distance).softmax(0))


@torch.no_grad()
@pytest.mark.parametrize("listening", [False, True])
def test_an_encoder_reads_by_the_same_distances_on_both_sides(listening):
    mixer = Bidirectional(8, heads=2, position={"part": "alibi", "options": {}}).double()
    for parameter in (mixer.q.weight, mixer.k.weight):
        parameter.zero_()
    torch.nn.init.normal_(mixer.v.weight)
    torch.nn.init.normal_(mixer.out.weight)
    heard, x = [], torch.randn(1, 5, 8).double()
    if listening:
        mixer.tap = Tap("", {"pattern": [lambda _, x: heard.append(x) or x]})
    y, _ = mixer(x, positions=torch.arange(5)[None])
    distance = torch.tensor([2, 1, 0, 1, 2]).double()
    patterns = [(-slope * distance).softmax(0) for slope in (2**-4, 2**-8)]
    values = mixer.v(x)[0].unflatten(-1, (2, 4))
    read = torch.cat([pattern @ values[:, head] for head, pattern in enumerate(patterns)])
    torch.testing.assert_close(y[0, 2], mixer.out(read))
    if listening:
        torch.testing.assert_close(heard[0][0, :, 2], torch.stack(patterns))
