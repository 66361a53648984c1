"""Keep the tokens whose keys and values stand out against the range of the tokens that came after them.

Behind the sinks the sequence is cut into partitions of `lag` positions. For keys and for values, channel by channel, with the
smallest and largest value of the next partition that holds anything:
  x'_t = (x_t - min) / (max - min);   r_t = softmax over t's partition of std over channels of x'_t
Within a partition tokens are ranked by (r_t of keys + r_t of values) / 2, and the score is minus the rank over `lag`, so that
all partitions keep equally many. What has no full partition behind it yet (the last full one and the rest) stands above, the
latest first. Needs no queries.

The paper compresses a partition once, when the next is full; here all of them are judged again at each compression, by what
is still held of them.

seam: policy
row: -
source: Liang et al. 2025, LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important (arXiv:2504.04704)
object: LagKV
aliases: lag
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.policy import Policy, rank_per_owner
from assay.core.store import Store


class LagKV(Policy):
    """`lag`: positions in a partition (128 in the paper). Partitions begin behind the first `sink` positions."""

    def __init__(self, lag: int = 128, **pins: Any) -> None:
        super().__init__(**pins)
        whole("lagkv", least=2, lag=lag)
        self.lag = lag

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        sequence = flat.owner // store.kv_heads
        last = flat.positions.new_zeros(store.batch).scatter_reduce(0, sequence, flat.positions, "amax")
        part = (flat.positions - self.sink).div(self.lag, rounding_mode="floor")
        full = (last + 1 - self.sink).div(self.lag, rounding_mode="floor")
        # the sinks are a group of their own before the first partition, so that they weigh in none
        parts = max(int(part.max()), -1) + 2
        group = flat.owner * parts + part.clamp(min=-1) + 1
        follower = _next_held(torch.bincount(group, minlength=store.owners * parts).view(-1, parts) > 0)
        telling = sum(_standing_out(wide(x), group, follower) for x in (flat.k, flat.v)) / 2
        rank = rank_per_owner(telling, group, store.owners * parts)
        apart = (part < 0) | (part >= full[sequence] - 1)
        lately = flat.positions + 1 + (part < 0) * int(last.max() + 1)
        return torch.where(apart, lately.to(telling.dtype), -rank / self.lag)


def _next_held(held: Tensor) -> Int[Tensor, "groups"]:
    """For each partition of each owner the next one that holds anything, among all groups; itself where there is none."""
    owners, parts = held.shape
    at = torch.arange(parts, device=held.device).expand(owners, -1)
    ahead = torch.where(held, at, parts).flip(1).cummin(1).values.flip(1)
    ahead = torch.cat([ahead[:, 1:], ahead.new_full((owners, 1), parts)], 1)
    return (torch.where(ahead < parts, ahead, at) + parts * torch.arange(owners, device=held.device)[:, None]).flatten()


def _standing_out(
    x: Float[Tensor, "stored dim"], group: Int[Tensor, "stored"], follower: Int[Tensor, "groups"]
) -> Float[Tensor, "stored"]:
    """How unevenly a token fills the range of the partition that follows, as a share of its own partition."""
    index = group[:, None].expand_as(x)
    low = x.new_full((len(follower), x.shape[1]), torch.inf).scatter_reduce(0, index, x, "amin")
    high = x.new_full((len(follower), x.shape[1]), -torch.inf).scatter_reduce(0, index, x, "amax")
    after = follower[group]
    width = (high[after] - low[after]).clamp(min=torch.finfo(x.dtype).eps)
    uneven = ((x - low[after]) / width).std(-1)
    peak = x.new_full(follower.shape, -torch.inf).scatter_reduce(0, group, uneven, "amax")
    weight = (uneven - peak[group]).exp()
    return weight / x.new_zeros(follower.shape).index_add(0, group, weight)[group]
