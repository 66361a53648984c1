"""Rope turns pairs as defined, in both layouts, and its scalings are those of transformers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from assay.core.errors import AssayError
from assay.parts.positions.rope import Rope, plain, scaled


class Config(SimpleNamespace):
    """What transformers' functions read of a model's config."""

    def standardize_rope_params(self) -> None: ...


def theirs(kind: str, length: int | None = None, dim: int = 64, **numbers: float) -> tuple[torch.Tensor, float]:
    parameters = {"rope_type": kind, "rope_theta": 10_000.0, **numbers}
    original = numbers.get("original_max_position_embeddings", 512)
    config = Config(rope_parameters=parameters, head_dim=dim, hidden_size=dim, num_attention_heads=1)
    config.max_position_embeddings = original
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)


@pytest.mark.parametrize(
    ("ours", "numbers"),
    [
        ({"kind": "linear", "factor": 4.0}, {"factor": 4.0}),
        (
            {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 256},
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ),
        ({"kind": "yarn", "factor": 4.0, "original": 512}, {"factor": 4.0, "original_max_position_embeddings": 512}),
        (
            {
                "kind": "yarn",
                "factor": 16.0,
                "original": 2048,
                "beta_fast": 24,
                "beta_slow": 2,
                "attention_factor": 1.3,
            },
            {
                "factor": 16.0,
                "original_max_position_embeddings": 2048,
                "beta_fast": 24,
                "beta_slow": 2,
                "attention_factor": 1.3,
            },
        ),
    ],
)
def test_scalings_equal_those_of_transformers(ours, numbers):
    wanted, gain = theirs(ours["kind"], **numbers)
    frequencies, our_gain = scaled(64, 10_000.0, ours)
    torch.testing.assert_close(frequencies, wanted, rtol=1e-6, atol=0)
    assert our_gain == pytest.approx(gain)
    assert not torch.allclose(frequencies, plain(64, 10_000.0)), "a scaling that changes nothing tests nothing"


@pytest.mark.parametrize("length", [100, 512, 1300])
def test_dynamic_scaling_equals_that_of_transformers_at_the_length_so_far(length):
    wanted, _ = theirs("dynamic", max(length, 512), factor=2.0)
    rope = Rope(64, scaling={"kind": "dynamic", "factor": 2.0, "original": 512})
    q = torch.zeros(1, 1, length, 64)
    q[..., :32] = 1.0
    turned, _ = rope.rotate(q, q, torch.arange(length)[None])
    angle = torch.arange(length)[:, None] * wanted
    torch.testing.assert_close(turned[0, 0], torch.cat([angle.cos(), angle.sin()], -1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("length", [5, 512, 513, 700])
def test_longrope_divides_by_the_long_list_once_a_text_is_longer_than_trained(length):
    short, long = [1.0 + i / 40 for i in range(32)], [1.0 + i for i in range(32)]
    numbers = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 512}
    wanted, gain = theirs("longrope", length, factor=8.0, **numbers)
    assert gain == pytest.approx(math.sqrt(1 + math.log(8) / math.log(512)))
    scaling = {"kind": "longrope", "short": short, "long": long, "original": 512, "attention_factor": gain}
    q = torch.zeros(1, 1, length, 64)
    q[..., :32] = 1.0
    turned, _ = Rope(64, scaling=scaling).rotate(q, q, torch.arange(length)[None])
    angle = torch.arange(length)[:, None] * wanted
    torch.testing.assert_close(turned[0, 0], gain * torch.cat([angle.cos(), angle.sin()], -1), rtol=0, atol=1e-4)


def test_a_pair_turns_by_position_times_frequency():
    rope = Rope(4, theta=100.0)
    q = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).expand(1, 1, 1, 4)
    (turned, _), angles = rope.rotate(q, q, torch.tensor([[5]])), (5.0, 0.5)
    for pair, angle in enumerate(angles):
        x1, x2 = float(q[0, 0, 0, pair]), float(q[0, 0, 0, pair + 2])
        assert float(turned[0, 0, 0, pair]) == pytest.approx(x1 * math.cos(angle) - x2 * math.sin(angle))
        assert float(turned[0, 0, 0, pair + 2]) == pytest.approx(x2 * math.cos(angle) + x1 * math.sin(angle))


def test_neighbouring_pairs_are_the_same_turn_of_other_coordinates():
    halves, neighbours = Rope(16), Rope(16, interleaved=True)
    q, at = torch.randn(2, 3, 7, 16), torch.arange(7).expand(2, 7)
    order = torch.arange(16).view(2, 8).T.flatten()  # 0, 8, 1, 9, ...
    wanted, _ = halves.rotate(q, q, at)
    turned, _ = neighbours.rotate(q[..., order], q[..., order], at)
    torch.testing.assert_close(turned, wanted[..., order])


def test_a_fraction_leaves_the_other_coordinates_alone():
    rope, q, at = Rope(16, fraction=0.25), torch.randn(1, 2, 5, 16), torch.arange(5)[None] + 3
    turned, _ = rope.rotate(q, q, at)
    assert torch.equal(turned[..., 4:], q[..., 4:])
    torch.testing.assert_close(turned[..., :4], Rope(4).rotate(q[..., :4], q[..., :4], at)[0])


def test_other_positions_of_the_same_shape_are_not_mistaken_for_the_last():
    rope, q = Rope(8), torch.randn(1, 1, 3, 8)
    first, _ = rope.rotate(q, q, torch.tensor([[0, 1, 2]]))
    second, _ = rope.rotate(q, q, torch.tensor([[7, 8, 9]]))
    other = Rope(8, theta=50.0)
    third, _ = other.rotate(q, q, torch.tensor([[0, 1, 2]]))
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, third)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"head_dim": 7}, "cannot turn 7 of 7"),
        ({"head_dim": 8, "fraction": 1.5}, "cannot turn 12 of 8"),
        ({"head_dim": 8, "scaling": {"kind": "ntk"}}, "choose linear, dynamic, llama3, yarn, longrope"),
        (
            {"head_dim": 8, "scaling": {"kind": "longrope", "short": [1] * 4, "long": [1] * 3, "original": 9}},
            "3 divisors for 4 pairs",
        ),
        ({"head_dim": 8, "scaling": {"factor": 2}}, "rope scaling None: choose"),
        ({"head_dim": 8, "scaling": {"kind": "llama3", "factor": 2}}, "llama3 needs high, low, original"),
    ],
)
def test_bad_arguments_are_named(options, why):
    with pytest.raises(AssayError, match=why):
        Rope(**options)
