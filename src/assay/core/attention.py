"""Softmax attention over pages: the fast paths that take no mask, the general one, and the merge of pages by log-sum-exp."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.linear import SHORT, fast_bfloat16
from assay.core.store import EMPTY, Pages


def visible(
    q_positions: Int[Tensor, "*rest queries"], k_positions: Int[Tensor, "*rest keys"], window: int | None
) -> Bool[Tensor, "*rest queries keys"]:
    """Which keys a query may read: those stored, not later than itself, and less than `window` tokens back."""
    distance = q_positions[..., :, None] - k_positions[..., None, :]
    allowed = (distance >= 0) & (k_positions[..., None, :] != EMPTY)
    return allowed if window is None else allowed & (distance < window)


def attend_causal(
    q: Float[Tensor, "batch heads tokens dim"],
    k: Float[Tensor, "batch kv_heads tokens dim"],
    v: Float[Tensor, "batch kv_heads tokens dim_v"],
    scale: float,
    window: int | None,
) -> Float[Tensor, "batch heads tokens dim_v"]:
    """A whole unpadded sequence attends to itself. With a window, in bands, so that work grows with tokens x window.

    The answer is in the dtype it was computed in, see `alike`.
    """
    grouped, tokens = q.shape[1] != k.shape[1], q.shape[2]
    q, k, v = alike(q, k, v)
    if window is None or tokens <= window:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    out = []
    band = max(
        window // 2, 64
    )  # each reads band + window keys: smaller ones compute less, larger ones start fewer kernels
    for begin in range(0, tokens, band):
        end, first = min(begin + band, tokens), max(0, begin - window + 1)
        keys, values = k[:, :, first:end], v[:, :, first:end]
        mask = _band(end - begin, begin - first, window, q.dtype, q.device)
        out.append(
            F.scaled_dot_product_attention(
                q[:, :, begin:end], keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped
            )
        )
    return torch.cat(out, 2)


@functools.lru_cache(maxsize=16)
def _band(
    rows: int, before: int, window: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "rows before+rows"]:
    """What is added to the scores of `rows` queries whose keys begin `before` tokens earlier. All layers' bands share a few."""
    with torch.inference_mode(False):
        at = torch.arange(before + rows, device=device)
        mask = torch.zeros(rows, before + rows, dtype=dtype, device=device)
        return mask.masked_fill_(~visible(at[before:], at, window), -torch.inf)


def alike(q: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
    """Queries and what is held in one dtype: that of what is held where hardware multiplies it, else the queries'."""
    dtype = held[0].dtype
    if all(t.dtype == q.dtype for t in held):
        return q, *held
    if q.dtype != dtype and q.device.type == "cpu" and not (dtype == torch.bfloat16 and fast_bfloat16()):
        dtype = q.dtype
    return tuple(t.to(dtype) for t in (q, *held))


def attend_all(
    q: Float[Tensor, "owners rows dim"],
    k: Float[Tensor, "owners keys dim"],
    v: Float[Tensor, "owners keys dim_v"],
    scale: float,
) -> Float[Tensor, "owners rows dim_v"]:
    """Every row reads every key of its owner: a decoding step whose cache holds nothing later than itself."""
    dtype = q.dtype
    q, k, v = alike(q, k, v)
    if q.dtype in SHORT:  # scores would be rounded; fused attention keeps them in float32
        return F.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)[0].to(dtype)
    return torch.bmm(torch.bmm(q * scale, k.mT).softmax(-1), v)


def attend_dense(
    q: Float[Tensor, "batch heads tokens dim"],
    pages: Pages,
    q_positions: Int[Tensor, "batch tokens"],
    *,
    scale: float,
    window: int | None,
    heads_alike: bool,
) -> Float[Tensor, "batch heads tokens dim_v"]:
    """General attention where each owner has one page. A query with nothing to read gives zero."""
    batch, heads = q.shape[:2]
    kv_heads = len(pages.owner) // batch
    k, v, k_positions = (t.unflatten(0, (batch, kv_heads)) for t in (pages.k, pages.v, pages.positions))
    dtype = q.dtype
    q, k, v = alike(q, k, v)
    if heads_alike:
        k_positions = k_positions[:, :1]
    mask = visible(q_positions[:, None], k_positions, window)
    if mask.shape[1] != 1:
        mask = mask.repeat_interleave(heads // kv_heads, 1)
    # a row that reads nothing would be NaN: let it read everything and drop the result
    blind = ~mask.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | blind, scale=scale, enable_gqa=heads != kv_heads)
    return torch.where(blind, 0, out).to(dtype)


def attend_pages(
    q: Float[Tensor, "batch heads tokens dim"],
    pages: Pages,
    q_positions: Int[Tensor, "batch tokens"],
    *,
    scale: float,
    window: int | None,
    kv_heads: int,
) -> tuple[Float[Tensor, "batch heads tokens dim_v"], Float[Tensor, "batch heads tokens"]]:
    """Attention over any layout of pages, and the log-sum-exp of each row's scores (-inf where it reads nothing)."""
    batch, heads, tokens, dim = q.shape
    group, owners = heads // kv_heads, batch * kv_heads
    rows = q.reshape(owners, group, tokens, dim)[pages.owner]
    k, v = pages.k.to(q.dtype), pages.v.to(q.dtype)
    scores = torch.einsum("pgtd,psd->pgts", rows * scale, k)
    mask = visible(q_positions[pages.owner // kv_heads], pages.positions, window)
    scores = scores.masked_fill(~mask[:, None], -torch.inf)
    # an owner's pages are merged relative to its highest score, which cancels and so needs no gradient
    shape = (owners, group, tokens)
    peak = scores.new_full(shape, torch.finfo(scores.dtype).min)
    highest = scores.detach().amax(-1)
    peak = peak.scatter_reduce(0, pages.owner[:, None, None].expand_as(highest), highest, "amax")
    weights = (scores - peak[pages.owner][..., None]).exp()
    read = torch.einsum("pgts,psd->pgtd", weights, v)
    total = scores.new_zeros(shape).index_add(0, pages.owner, weights.sum(-1))
    out = scores.new_zeros(*shape, v.shape[-1]).index_add(0, pages.owner, read)
    blind = total == 0
    total = total.masked_fill(blind, 1)
    lse = (peak + total.log()).masked_fill(blind, -torch.inf)
    return (out / total[..., None]).reshape(batch, heads, tokens, -1), lse.reshape(batch, heads, tokens)


def scores_of(
    q: Float[Tensor, "batch heads tokens dim"],
    pages: Pages,
    q_positions: Int[Tensor, "batch tokens"],
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    bias: Callable[[Tensor, Tensor], Tensor | None] | None = None,
) -> tuple[Float[Tensor, "batch heads tokens keys"], Float[Tensor, "batch heads keys dim_v"]]:
    """The explicit score matrix (-inf where a key may not be read) over one page an owner, and the values it weighs.

    `bias(q_positions, k_positions)` is added to the scores, if it gives anything.
    """
    batch, heads = q.shape[:2]
    kv_heads = len(pages.owner) // batch
    k, v, at = (
        t.unflatten(0, (batch, kv_heads)).repeat_interleave(heads // kv_heads, 1)
        for t in (pages.k.to(q.dtype), pages.v.to(q.dtype), pages.positions)
    )
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) * scale
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    added = None if bias is None else bias(q_positions, at)
    scores = scores if added is None else scores + added.to(scores.dtype)
    return scores.masked_fill(~visible(q_positions[:, None], at, window), -torch.inf), v


def softmax_or_zero(scores: Float[Tensor, "*rest keys"]) -> Float[Tensor, "*rest keys"]:
    """Softmax over keys; a row that may read nothing is zero (and its gradient too) instead of NaN."""
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(blind, 0, scores.masked_fill(blind, 0).softmax(-1))
