"""Controls share mean and covariance with the data; random directions explain all where they span the space, little in one."""

from __future__ import annotations

import pytest
import torch

from assay.analysis.inspect import gaussian_like, random_directions


def stretched(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    return torch.rand(count, 6, generator=generator, dtype=torch.float64) @ mixing + 3


def test_gaussian_vectors_have_the_mean_and_covariance_of_the_data():
    x = stretched(2000)
    noise = gaussian_like(x, 200_000, seed=1)
    torch.testing.assert_close(noise.mean(0), x.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(noise.T.cov(), x.T.cov(), rtol=0, atol=0.02 * x.T.cov().abs().max().item())
    assert gaussian_like(x[:3], 5, seed=1).shape == (5, 6)  # fewer vectors than dimensions


def test_random_directions_explain_more_the_more_of_them_there_are_and_all_where_they_span():
    x = stretched(500)
    by_k = [random_directions(x, features=12, k=k) for k in (1, 2, 3, 6, 9)]
    assert by_k == sorted(by_k) and by_k[0] < 0.95
    assert by_k[3] == pytest.approx(1) and by_k[4] == pytest.approx(1)
    assert random_directions(x, features=200, k=1) > by_k[0]
    # One direction, one vector at a time: what a projection on it explains.
    isotropic = torch.randn(4000, 6, generator=torch.Generator().manual_seed(2))
    assert random_directions(isotropic, features=1, k=1) == pytest.approx(1 / 6, abs=0.02)
