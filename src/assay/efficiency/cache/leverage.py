"""Statistical leverage: how much each of many vectors adds to what they span together, and the capacity it belongs to.

Drineas et al. 2012 (arXiv:1109.3843) for leverage; Alaoui & Mahoney 2015 (arXiv:1411.0306) for ridge leverage and the
effective dimension.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def ridge_of(x: Float[Tensor, "*rest vectors rank"], share: float, dim: int | None = None) -> Float[Tensor, "*rest"]:
    """`share` of the mean eigenvalue of x^T x in `dim` dimensions (x's own, if not given), never quite zero."""
    mean = x.square().sum((-2, -1)) / (dim or x.shape[-1])
    return (share * mean).clamp(min=torch.finfo(x.dtype).tiny ** 0.5)


def leverage(x: Float[Tensor, "*rest vectors rank"], ridge: Float[Tensor, "*rest"]) -> Float[Tensor, "*rest vectors"]:
    """x_i^T (sum_j x_j x_j^T + ridge I)^-1 x_i, in [0, 1)."""
    gram = x.mT @ x
    gram.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
    lower = torch.linalg.cholesky(gram)
    return torch.linalg.solve_triangular(lower, x.mT, upper=False).square().sum(-2)


def effective_dimension(
    x: Float[Tensor, "*rest vectors rank"], ridge: Float[Tensor, "*rest"]
) -> Float[Tensor, "*rest"]:
    """sum_j l_j / (l_j + ridge) over the eigenvalues of x^T x: what leverage scores add up to."""
    eigenvalues = torch.linalg.eigvalsh(x.mT @ x).clamp(min=0)
    return (eigenvalues / (eigenvalues + ridge[..., None])).sum(-1)


def capacity(x: Float[Tensor, "*rest vectors rank"], noise: float) -> Float[Tensor, "*rest"]:
    """0.5 log det(I + x^T x / noise), in nats: what a Gaussian channel with these rows and this noise variance carries."""
    gram = x.mT @ x / noise
    return 0.5 * torch.linalg.slogdet(gram + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)).logabsdet
