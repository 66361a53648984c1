"""Where there is nothing to find: vectors and directions that share the mean and covariance of the data and nothing else."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def gaussian_like(x: Float[Tensor, "n dim"], count: int, seed: int) -> Float[Tensor, "count dim"]:
    """Gaussian vectors of the mean and covariance of `x`: what an instrument finds here, it finds in any data of this shape."""
    mean = x.mean(0)
    generator = torch.Generator().manual_seed(seed)
    _, deviations, axes = torch.linalg.svd((x - mean) / len(x) ** 0.5, full_matrices=False)
    drawn = torch.randn(count, len(deviations), generator=generator).to(x)
    return mean + (drawn * deviations) @ axes


def random_directions(x: Float[Tensor, "n dim"], *, features: int, k: int, seed: int = 0, most: int = 2048) -> float:
    """Explained variance of `features` random directions, drawn with the covariance of `x`, at k of them a vector.

    Each of the first `most` vectors chooses greedily and fits by least squares (orthogonal matching pursuit, Pati et al.
    1993), which is a better encoder than one matrix and a threshold: what an SAE explains above this it has learned.
    """
    x = x[:most] - x.mean(0)
    directions = gaussian_like(x, features, seed) - x.mean(0)
    directions = directions / directions.norm(dim=1, keepdim=True).clamp(min=1e-30)
    left, chosen = x, torch.zeros(len(x), 0, dtype=torch.long, device=x.device)
    for _ in range(min(k, features, x.shape[1])):
        likeness = (left @ directions.T).abs().scatter(1, chosen, -1.0)
        chosen = torch.cat([chosen, likeness.argmax(1, keepdim=True)], 1)
        basis = torch.linalg.qr(directions[chosen].mT)[0]
        left = x - (basis @ (basis.mT @ x[..., None]))[..., 0]
    return 1 - (left.square().sum() / (x - x.mean(0)).square().sum()).item()
