"""Stores filled without a model, for the tests of single policies."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store


def observed(
    tokens: int, *, batch: int = 1, kv_heads: int = 2, group: int = 2, dim: int = 8, start: int = 0, seed: int = 0
) -> Observed:
    """Random queries, keys and values in float64; "unrotated" ones are others, so that mixing them up shows."""
    made = torch.Generator().manual_seed(seed)
    q, q_before = (
        torch.randn(batch, kv_heads * group, tokens, dim, generator=made, dtype=torch.float64) for _ in range(2)
    )
    k, v, k_before = (torch.randn(batch, kv_heads, tokens, dim, generator=made, dtype=torch.float64) for _ in range(3))
    at = torch.arange(start, start + tokens).expand(batch, -1)
    return Observed(q, k, v, q_before, k_before, at, None, scale=dim**-0.5)


def fed(policy: Policy, seen: Observed, store: Store | None = None) -> Store:
    """A store that has taken in what was observed, with the policy looking on."""
    store = Store(*seen.k.shape[:2]) if store is None else store
    store.append(seen.k, seen.v, positions=seen.positions, valid=seen.valid)
    policy.observe(0, store, seen)
    return store


def order(scores: Tensor) -> list[int]:
    return scores.argsort(descending=True, stable=True).tolist()
