"""The delta rule with decay, token by token and in chunks, and the frame of the mixers that follow it.

S'_t = Diag(e^{g_t}) S_{t-1},  S_t = S'_t + b_t k_t (v_t - S'_t^T k_t)^T,  o_t = S_t^T q_t.
`decay` holds g_t <= 0: "batch heads tokens key_dim", or "batch heads tokens" where all channels of a head decay alike.
source: Yang et al. 2024 (arXiv:2406.06484); with decay arXiv:2412.06464; for each channel: Kimi Team 2025 (arXiv:2510.26692)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.linear import Linear
from assay.core.sites import site
from assay.parts.mixers.common import Packing, RecurrentState, causal_convolution
from assay.parts.mixers.decayed import decayed_products, in_chunks
from assay.parts.mixers.recurrent import RecurrentMixer, by_head, dim_of_head, joined, widened


class DeltaRule(RecurrentMixer):
    """q, k, v through a short causal convolution and silu, unit q and k, the delta rule, an RMS norm of each head.

    `expand`: value_dim over head_dim. `taps`: of the convolution. `chunk`: tokens solved at once. A subclass says how the
    memory decays and whether the output is gated.
    """

    sites = ("q", "k", "v", "decay", "beta", "state", "z")

    def __init__(
        self, part: str, width: int, heads: int, head_dim: int | None, expand: float, taps: int, chunk: int, eps: float
    ) -> None:
        super().__init__()
        whole(part, heads=heads, head_dim=head_dim, taps=taps, chunk=chunk)
        self.heads, self.key_dim = heads, dim_of_head(width, heads, head_dim)
        self.value_dim, self.taps, self.chunk, self.eps = widened(part, self.key_dim, expand), taps, chunk, eps
        keys, values = heads * self.key_dim, heads * self.value_dim
        self.q, self.k, self.v = Linear(width, keys), Linear(width, keys), Linear(width, values)
        self.beta, self.out = Linear(width, heads), Linear(values, width)
        self.convolution = nn.Parameter(torch.randn(2 * keys + values, taps) / math.sqrt(taps))
        self.norm = nn.Parameter(torch.ones(self.value_dim))
        # the memory is read at k, corrected, and read at q
        self.products = 3 * heads * self.key_dim * self.value_dim + self.convolution.numel()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "memory": (self.heads, self.key_dim, self.value_dim),
            "tail": (self.taps - 1, self.heads * (2 * self.key_dim + self.value_dim)),
        }

    def decays(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens heads *key_dim"]:
        """Logarithms of the factors by which each head, or each channel of its keys, decays."""
        return wide(x).new_zeros(*x.shape[:2], self.heads)

    def gated(
        self, normed: Float[Tensor, "batch heads tokens value_dim"], x: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch heads tokens value_dim"]:
        return normed

    def mix(
        self,
        x: Float[Tensor, "batch tokens width"],
        held: RecurrentState,
        packing: Packing,
        positions: Int[Tensor, "..."],
    ) -> tuple[Float[Tensor, "batch tokens width"], dict[str, Tensor]]:
        q, k, v, tail = self._project(x, held["tail"], packing.lengths)
        beta = site(self, "beta", packing.silence(wide(self.beta(x)).sigmoid()).transpose(1, 2))
        decay = site(self, "decay", packing.silence(self.decays(x)).transpose(1, 2))
        rule = step_by_step if x.shape[1] == 1 else chunked
        read, memory = rule(wide(q), wide(k), wide(v), decay, beta, held["memory"], self.chunk)
        normed = F.rms_norm(read, self.norm.shape, wide(self.norm), self.eps).to(x.dtype)
        z = site(self, "z", self.gated(normed, x))
        return self.out(joined(z)), {"memory": site(self, "state", memory), "tail": tail}

    def _project(self, x: Tensor, tail: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        together = torch.cat([self.q(x), self.k(x), self.v(x)], -1)
        mixed, tail = causal_convolution(wide(together), wide(self.convolution), tail, lengths)
        keys = self.heads * self.key_dim
        parts = F.silu(mixed).to(x.dtype).split([keys, keys, mixed.shape[-1] - 2 * keys], -1)
        q, k, v = (by_head(part, self.heads) for part in parts)
        q, k = F.normalize(q, dim=-1) * self.key_dim**-0.5, F.normalize(k, dim=-1)
        return site(self, "q", q), site(self, "k", k), site(self, "v", v), tail


def step_by_step(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens *key_dim"],
    beta: Float[Tensor, "batch heads tokens"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
    chunk: int = 1,
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """The recurrence as it is written. The reference, and the path of one token."""
    decay = decay[..., None] if decay.ndim == 3 else decay
    read = []
    for t in range(q.shape[2]):
        memory = memory * decay[:, :, t, :, None].exp()
        wrong = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", memory, k[:, :, t])
        memory = memory + k[:, :, t, :, None] @ (beta[:, :, t, None] * wrong)[:, :, None]
        read.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, :, t]))
    return torch.stack(read, 2), memory


def chunked(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens *key_dim"],
    beta: Float[Tensor, "batch heads tokens"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
    chunk: int,
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """The same in chunks. With G_i the decay summed within a chunk and P_ij = sum_d k_id k_jd e^{G_id - G_jd}, the written
    rows u solve (I + tril(b P, -1)) u = b (v - (e^G k) S)."""
    tokens = q.shape[2]
    q, k, v, decay, beta = in_chunks(chunk, q, k, v, decay[..., None] if decay.ndim == 3 else decay, beta[..., None])
    total = decay.cumsum(-2)
    last = total[..., -1:, :]
    system = (beta * decayed_products(k, k, total)).tril(-1) + torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
    sides = torch.cat([beta * v, beta * total.exp() * k], -1)
    fresh, erased = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], -1
    )
    scores = decayed_products(q, k, total)
    started, left, kept = total.exp() * q, (last - total).exp() * k, last.exp().mT
    read = []
    for c in range(q.shape[2]):
        written = fresh[:, :, c] - erased[:, :, c] @ memory
        read.append(started[:, :, c] @ memory + scores[:, :, c] @ written)
        memory = memory * kept[:, :, c] + left[:, :, c].mT @ written
    return torch.cat(read, 2)[:, :, :tokens], memory
