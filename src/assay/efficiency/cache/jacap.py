"""Keep the tokens that tell most about how attention's output answers to a change of the query.

For one query, with p its attention, kbar = sum_i p_i k_i and o = sum_i p_i v_i:
  Jacobian     do/dq = scale * V^T (diag(p) - p p^T) K = scale * sum_i p_i v_i (k_i - kbar)^T
  weights      w_i = p_i (1 - p_i), the slope of the softmax; with `values`, times ||v_i - o||
  keys         k~_i = Sigma^(1/2) (k_i - kbar), Sigma the covariance of the last `window` queries of the group's heads
  score_i      w_i k~_i^T (sum_j w_j k~_j k~_j^T + ridge I)^-1 k~_i, the leverage of token i
averaged over those queries. A set S kept has capacity 0.5 log det(I + sum_{i in S} w_i k~_i k~_i^T / s^2); leverage is its gain to
first order. While generating, the most recent queries take the place of the prompt's last ones.

The abstract gives the ingredients, not the product; choices: 32 queries, ridge = 1 % of the mean eigenvalue, no `values`. The
slope of a soft cap on scores is left out of w.

seam: policy
row: D07
source: Jacap (row D07)
object: Jacap
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.attending import Queries, QueryWindow, attention
from assay.efficiency.cache.common import SCORES, Rows
from assay.efficiency.cache.leverage import leverage, ridge_of


class Jacap(Policy):
    """`window` queries are held in the store. Each costs a matrix of its own, of as many rows as there are queries at most."""

    def __init__(self, window: int = 32, ridge: float = 0.01, values: bool = False, **pins: Any) -> None:
        super().__init__(**pins)
        whole("jacap", window=window)
        if not ridge > 0:
            raise AssayError(f"jacap: ridge={ridge} must be positive")
        self.window, self.ridge, self.values = window, ridge, values
        self.queries = QueryWindow("jacap", self.tag, window)

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.queries.take(layer, store, seen)

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        queries, flat = self.queries.held(layer, store), store.flat()
        rows = Rows(flat, store.owners)
        values = rows.pad(wide(flat.v)) if self.values else None
        keys = rows.pad(wide(flat.k)) @ query_root(queries, store.kv_heads)
        total = keys.new_zeros(keys.shape[:2])
        group = queries.q.shape[1] // store.kv_heads
        for _, part in queries.parts(max(1, SCORES // (group * max(1, keys.numel())))):
            pattern = attention(part, store, rows).flatten(1, 2)
            weighed = sensitive(pattern, keys, values)
            total += leverage(weighed, ridge_of(weighed, self.ridge, flat.k.shape[-1])).sum(1)
        count = queries.voting.sum(1).clamp(min=1).repeat_interleave(store.kv_heads) * group
        return rows.flat(total / count[:, None])


def query_root(queries: Queries, kv_heads: int) -> Float[Tensor, "owners dim rank"]:
    """R with R R^T the covariance of each group's queries: what leverage sees of keys times R, it sees of Sigma^(1/2) times keys."""
    q = wide(queries.q).unflatten(1, (kv_heads, -1)).flatten(0, 1)
    voting = queries.voting.repeat_interleave(kv_heads, 0)[:, None, :, None]
    count = (voting.sum((1, 2)) * q.shape[1]).clamp(min=1)
    q = q.masked_fill(~voting, 0)
    centred = (q - (q.sum((1, 2)) / count)[:, None, None]).masked_fill(~voting, 0).flatten(1, 2)
    _, spread, directions = torch.linalg.svd(centred, full_matrices=False)
    return directions.mT * (spread / count.sqrt())[:, None]


def sensitive(
    pattern: Float[Tensor, "owners queries tokens"],
    keys: Float[Tensor, "owners tokens rank"],
    values: Float[Tensor, "owners tokens dim_v"] | None = None,
) -> Float[Tensor, "owners queries tokens rank"]:
    """sqrt(w_i) k~_i of every query: keys about their mean under its attention, weighed by the softmax's slope."""
    weights = pattern * (1 - pattern)
    if values is not None:
        weights = weights * torch.cdist(pattern @ values, values)
    return weights.clamp(min=0).sqrt()[..., None] * (keys[:, None] - (pattern @ keys)[:, :, None])


def jacobian(
    q: Float[Tensor, "dim"], k: Float[Tensor, "tokens dim"], v: Float[Tensor, "tokens dim_v"], scale: float
) -> Float[Tensor, "dim_v dim"]:
    """How the output of softmax attention changes with its query, in closed form."""
    p = (k @ q * scale).softmax(0)
    return scale * v.mT @ (p[:, None] * (k - p @ k))
