"""Leverage: what it adds up to, its definition, and the capacity whose gain it is."""

import torch

from assay.efficiency.cache.leverage import capacity, effective_dimension, leverage, ridge_of


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_scores_are_their_definition_and_add_up_to_the_effective_dimension():
    x = vectors(3, 40, 7)
    ridge = ridge_of(x, 0.05)
    scores = leverage(x, ridge)
    for batch in range(3):
        inverse = (x[batch].mT @ x[batch] + ridge[batch] * torch.eye(7)).inverse()
        torch.testing.assert_close(scores[batch], torch.stack([row @ inverse @ row for row in x[batch]]))
    torch.testing.assert_close(scores.sum(-1), effective_dimension(x, ridge))
    assert bool((scores.sum(-1) < 7).all()) and bool((scores > 0).all()) and bool((scores < 1).all())


def test_the_ridge_is_a_share_of_the_mean_eigenvalue():
    x = vectors(40, 7)
    mean = torch.linalg.eigvalsh(x.mT @ x).mean()
    torch.testing.assert_close(ridge_of(x, 0.05), 0.05 * mean)
    torch.testing.assert_close(ridge_of(x, 0.05, 14), 0.05 * mean / 2)  # seven dimensions of fourteen


def test_a_turn_changes_nothing():
    x = vectors(40, 7)
    turn = torch.linalg.qr(vectors(7, 7, seed=1)).Q
    torch.testing.assert_close(leverage(x @ turn, ridge_of(x, 0.05)), leverage(x, ridge_of(x, 0.05)))


def test_leverage_is_what_capacity_loses_without_a_row():
    """det(A - x x^T) = det(A) (1 - x^T A^-1 x)."""
    x, noise = vectors(30, 6), 2.0
    scores = leverage(x, torch.tensor(noise, dtype=torch.float64))
    whole = capacity(x, noise)
    for row in range(30):
        without = capacity(torch.cat([x[:row], x[row + 1 :]]), noise)
        torch.testing.assert_close(whole - without, -0.5 * torch.log1p(-scores[row]))


def test_capacity_grows_with_diminishing_returns():
    x = vectors(60, 8)
    for seed in range(20):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
        small, large, one = order[:10], order[:30], order[40:41]
        gains = [capacity(x[torch.cat([s, one])], 1.0) - capacity(x[s], 1.0) for s in (small, large)]
        assert gains[0] >= gains[1] > 0


def test_nothing_spans_nothing():
    x = torch.zeros(2, 5, 3)
    assert torch.equal(leverage(x, ridge_of(x, 0.01)), torch.zeros(2, 5))
