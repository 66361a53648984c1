"""The law of positions, for every registered position: only distances matter, nothing but an angle or a bias is added."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.probe import SIZES, builds, make, randn
from torch import Tensor

from assay.core.mixer import Position

# A law may be relaxed only by name, with the reason.
STRETCHES = dict.fromkeys(("yarn", "longrope"), "as published, cos and sin are multiplied by an attention factor")

DIM = SIZES["head_dim"]
every_position = pytest.mark.parametrize(("name", "chosen"), builds("position"))


def inputs(tokens: int = 11, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return randn(2, 4, tokens, DIM, dtype=dtype), randn(2, 2, tokens, DIM, seed=2, dtype=dtype)


def spread(tokens: int = 11) -> Tensor:
    """Other positions in each sequence, with gaps."""
    return torch.stack([torch.arange(tokens) * 3, torch.arange(tokens) + 40])


def scores(position: Position, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    q, k = position.rotate(q, k, positions)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    bias = position.bias(positions, positions[:, None].expand(-1, q.shape[1], -1))
    return q @ k.mT + (0 if bias is None else bias)


@every_position
def test_scores_depend_on_distances_alone(name, chosen):
    position, (q, k), at = make("position", name, chosen), inputs(), spread()
    near, far = scores(position, q, k, at), scores(position, q, k, at + 1000)
    torch.testing.assert_close(far, near, rtol=0, atol=1e-9)
    assert (scores(position, q, k, at * 2) - near).abs().max() > 1e-3, "and on nothing else they would say nothing"


@every_position
def test_lengths_of_queries_and_keys_are_kept(name, chosen):
    position, (q, k) = make("position", name, chosen), inputs()
    for before, after in zip((q, k), position.rotate(q, k, spread()), strict=True):
        assert after.shape == before.shape
        stretch = after.norm(dim=-1) / before.norm(dim=-1)
        if (chosen.get("scaling") or {}).get("kind") in STRETCHES:
            torch.testing.assert_close(stretch, torch.full_like(stretch, float(stretch.mean())), rtol=0, atol=1e-9)
        else:
            torch.testing.assert_close(stretch, torch.ones_like(stretch), rtol=0, atol=1e-12)


@every_position
def test_tokens_turn_one_by_one_as_they_do_together(name, chosen):
    position, (q, k), at = make("position", name, chosen), inputs(), spread()
    together = position.rotate(q, k, at)
    for t in range(q.shape[2]):
        alone = position.rotate(q[:, :, t : t + 1], k[:, :, t : t + 1], at[:, t : t + 1])
        for got, wanted in zip(alone, together, strict=True):
            torch.testing.assert_close(got, wanted[:, :, t : t + 1], rtol=0, atol=1e-12)
    for b in range(2):
        alone = position.rotate(q[b : b + 1], k[b : b + 1], at[b : b + 1])
        for got, wanted in zip(alone, together, strict=True):
            torch.testing.assert_close(got, wanted[b : b + 1], rtol=0, atol=1e-12)


@every_position
def test_far_positions_are_as_exact_in_a_model_cast_to_bfloat16(name, chosen):
    position, (q, k) = make("position", name, chosen, torch.float32).bfloat16(), inputs(dtype=torch.bfloat16)
    at = spread() + 3001
    exact = make("position", name, chosen, torch.float32).rotate(q.float(), k.float(), at)
    for got, wanted in zip(position.rotate(q, k, at), exact, strict=True):
        assert got.dtype == torch.bfloat16
        assert (got.float() - wanted).norm() < 0.01 * wanted.norm()


@every_position
def test_gradients_pass(name, chosen):
    position, (q, k) = make("position", name, chosen), inputs()
    q.requires_grad_(), k.requires_grad_()
    grads = torch.autograd.grad(sum(t.square().sum() for t in position.rotate(q, k, spread())), [q, k])
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in grads)


@every_position
def test_a_bias_is_given_exactly_when_announced(name, chosen):
    position = make("position", name, chosen)
    bias = position.bias(spread(5), spread(7)[:, None].expand(2, 4, 7))
    if position.biased:
        assert bias.shape == (2, 4, 5, 7)
    else:
        assert bias is None
