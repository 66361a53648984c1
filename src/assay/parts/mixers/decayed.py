"""Linear attention with decay, token by token and in chunks: S_t = Diag(e^{g_t}) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t.

`decay` holds g_t <= 0: "batch heads tokens key_dim" with a decay for each channel, "batch heads tokens 1" with one a head.
source: chunks: Yang et al. 2023 (arXiv:2312.06635), section 4; Dao and Gu 2024 (arXiv:2405.21060), section 6
"""

from __future__ import annotations

from math import gcd

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

BLOCK = 16  # tokens of a chunk among which each channel's decay is written out


def step_by_step(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens decays"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """The recurrence as it is written. The reference, and the path of one token."""
    read = []
    for t in range(q.shape[2]):
        memory = memory * decay[:, :, t, :, None].exp() + k[:, :, t, :, None] @ v[:, :, t, None]
        read.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, :, t]))
    return torch.stack(read, 2), memory


def chunked(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens decays"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
    chunk: int,
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """The same in chunks: what tokens of one chunk read of each other are matrix products, between chunks S is carried."""
    tokens = q.shape[2]
    q, k, v, decay = in_chunks(chunk, q, k, v, decay)
    total = decay.cumsum(-2)
    last = total[..., -1:, :]
    inside = decayed_products(q, k, total) @ v
    added, kept = ((last - total).exp() * k).mT @ v, last.exp().mT
    before = []
    for c in range(q.shape[2]):
        before.append(memory)
        memory = memory * kept[:, :, c] + added[:, :, c]
    read = inside + (total.exp() * q) @ torch.stack(before, 2)
    return read.flatten(2, 3)[:, :, :tokens], memory


def mixed(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens decays"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
    chunk: int,
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """One token as it is written, many in chunks."""
    if q.shape[2] == 1:
        return step_by_step(q, k, v, decay, memory)
    return chunked(q, k, v, decay, memory, chunk)


def in_chunks(chunk: int, *tensors: Float[Tensor, "batch heads tokens dim"]) -> list[Tensor]:
    """Each "batch heads chunks size dim", zeros after the last token: they write nothing and decay nothing."""
    tokens = tensors[0].shape[2]
    size = min(chunk, tokens + -tokens % BLOCK)
    return [F.pad(t, (0, 0, 0, -tokens % size)).unflatten(2, (-1, size)) for t in tensors]


def decayed_products(
    a: Float[Tensor, "*rest size dim"], b: Float[Tensor, "*rest size dim"], total: Float[Tensor, "*rest size decays"]
) -> Float[Tensor, "*rest size size"]:
    """sum_d a_id b_jd e^{G_id - G_jd} for j <= i, else zero; `total` is G, the decay summed up to each token.

    No exponent is ever positive. One decay for all channels: a matrix product, weighted. A decay for each channel: a product
    for what earlier blocks wrote, with the decay counted from the block's first token, and written out within a block.
    """
    size = a.shape[-2]
    if total.shape[-1] == 1:
        return (a @ b.mT) * (total - total.mT).tril().exp().tril()
    block = gcd(size, BLOCK)
    a, own, inner = (t.unflatten(-2, (-1, block)) for t in (a, b, total))
    blocks, first = size // block, inner[..., :1, :]
    until = (first - total[..., None, :, :]).clamp(max=0).exp() * b[..., None, :, :]
    across = ((inner - first).exp() * a) @ until.mT
    earlier = torch.arange(size, device=a.device) < block * torch.arange(blocks, device=a.device)[:, None, None]
    across = torch.where(earlier, across, 0)
    later = torch.ones(block, block, dtype=torch.bool, device=a.device).triu(1)[..., None]
    apart = (inner[..., :, None, :] - inner[..., None, :, :]).masked_fill(later, -torch.inf)
    within = (a[..., :, None, :] * apart.exp() * own[..., None, :, :]).sum(-1)
    diagonal = torch.eye(blocks, dtype=a.dtype, device=a.device)[:, None, :, None] * within[..., :, :, None, :]
    return (across.unflatten(-1, (blocks, block)) + diagonal).flatten(-2).flatten(-3, -2)
