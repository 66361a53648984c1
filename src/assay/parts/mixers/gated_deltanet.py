"""Gated DeltaNet: a matrix memory that decays, and corrects what it holds under a key instead of adding to it.

S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T,  o_t = S_t^T q_t, with unit q and k, a decay a_t in (0, 1) and a
writing strength b_t in (0, 1) from the token. q, k, v pass a short causal convolution and silu; o passes a gated RMSNorm.
x: "batch tokens width"; S: "batch heads key_dim value_dim".

Many tokens run in chunks: within a chunk all corrections are one triangular solve, between chunks S is carried.

seam: mixer
row: -
source: Yang et al. 2024, Gated Delta Networks (arXiv:2412.06464); decay as in Mamba-2 (arXiv:2405.21060)
object: GatedDeltaNet
aliases: gdn
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.mixer import Cost, Mixer
from assay.core.sites import site
from assay.parts.mixers.common import Packing, RecurrentState, causal_convolution


class GatedDeltaNet(Mixer):
    """`expand`: value_dim over head_dim. `taps`: of the convolution. `chunk`: tokens solved at once."""

    sites = ("q", "k", "v", "decay", "beta", "state", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        expand: float = 1.0,
        taps: int = 4,
        chunk: int = 64,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        whole("gated_deltanet", heads=heads, head_dim=head_dim, taps=taps, chunk=chunk)
        if head_dim is None and width % heads:
            raise AssayError(f"width {width} does not divide into {heads} heads: give head_dim")
        self.heads, self.key_dim = heads, head_dim or width // heads
        self.value_dim, self.taps, self.chunk, self.eps = int(self.key_dim * expand), taps, chunk, eps
        whole("gated_deltanet", value_dim=self.value_dim)
        keys, values = heads * self.key_dim, heads * self.value_dim
        self.q, self.k, self.v = Linear(width, keys), Linear(width, keys), Linear(width, values)
        self.gate, self.out = Linear(width, values), Linear(values, width)
        self.decay, self.beta = Linear(width, heads), Linear(width, heads)
        self.convolution = nn.Parameter(torch.randn(2 * keys + values, taps) / math.sqrt(taps))
        # decay rates spread over orders of magnitude, steps between 0.001 and 0.1, as in Mamba-2
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        step = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.decay_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = nn.Parameter(torch.ones(self.value_dim))

    def start(self, batch: int) -> RecurrentState:
        like = wide(self.norm)
        memory = like.new_zeros(batch, self.heads, self.key_dim, self.value_dim)
        tail = like.new_zeros(batch, self.taps - 1, len(self.convolution))
        return RecurrentState(batch, like.device, memory=memory, tail=tail)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: RecurrentState | None = None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], RecurrentState | None]:
        held = self.start(len(x)) if state is None else state
        packing = Packing(valid)
        x = packing.pack(x)
        q, k, v, tail = self._project(x, held["tail"], None if packing.valid is None else packing.valid.sum(1))
        log_decay = -wide(self.log_rate).exp() * F.softplus(wide(self.decay(x)) + self.decay_bias)
        beta = site(self, "beta", packing.silence(wide(self.beta(x)).sigmoid()).transpose(1, 2))
        decay = site(self, "decay", packing.silence(log_decay).transpose(1, 2))
        rule = step_by_step if x.shape[1] == 1 else chunked
        read, memory = rule(wide(q), wide(k), wide(v), decay, beta, held["memory"], self.chunk)
        if state is not None:
            state.advance(x.shape[1], valid, memory=site(self, "state", memory), tail=tail)
        z = site(self, "z", self._gated_norm(read.to(x.dtype), x))
        return packing.unpack(self.out(z.transpose(1, 2).flatten(2))), state

    def _project(self, x: Tensor, tail: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        joined = torch.cat([self.q(x), self.k(x), self.v(x)], -1)
        mixed, tail = causal_convolution(wide(joined), wide(self.convolution), tail, lengths)
        keys = self.heads * self.key_dim
        parts = F.silu(mixed).to(x.dtype).split([keys, keys, mixed.shape[-1] - 2 * keys], -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        q, k = F.normalize(q, dim=-1) * self.key_dim**-0.5, F.normalize(k, dim=-1)
        return site(self, "q", q), site(self, "k", k), site(self, "v", v), tail

    def _gated_norm(self, read: Tensor, x: Tensor) -> Float[Tensor, "batch heads tokens value_dim"]:
        gate = F.silu(self.gate(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return F.rms_norm(read, self.norm.shape, self.norm.to(read.dtype), self.eps) * gate

    def cost(self, tokens: int) -> Cost:
        matrices = sum(m.weight.numel() for m in (self.q, self.k, self.v, self.gate, self.out, self.decay, self.beta))
        # token by token, the decay aside: read the memory at k, correct it, read it at q
        memory = 3 * self.heads * self.key_dim * self.value_dim
        flops = 2 * tokens * (matrices + self.convolution.numel() + memory)
        state = self.heads * self.key_dim * self.value_dim + (self.taps - 1) * len(self.convolution)
        return Cost(sum(p.numel() for p in self.parameters()), flops, state * wide(self.norm).element_size())


def step_by_step(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens"],
    beta: Float[Tensor, "batch heads tokens"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
    chunk: int = 1,
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """The recurrence as it is written; `decay` is its logarithm. The reference, and the path of one token."""
    read = []
    for t in range(q.shape[2]):
        memory = memory * decay[:, :, t, None, None].exp()
        wrong = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", memory, k[:, :, t])
        memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, :, t], beta[:, :, t, None] * wrong)
        read.append(torch.einsum("bhkv,bhk->bhv", memory, q[:, :, t]))
    return torch.stack(read, 2), memory


def chunked(
    q: Float[Tensor, "batch heads tokens key_dim"],
    k: Float[Tensor, "batch heads tokens key_dim"],
    v: Float[Tensor, "batch heads tokens value_dim"],
    decay: Float[Tensor, "batch heads tokens"],
    beta: Float[Tensor, "batch heads tokens"],
    memory: Float[Tensor, "batch heads key_dim value_dim"],
    chunk: int,
) -> tuple[Float[Tensor, "batch heads tokens value_dim"], Float[Tensor, "batch heads key_dim value_dim"]]:
    """The same in chunks. With G_i the decay summed within a chunk, the written rows u solve
    (I + tril(b k k^T e^{G_i - G_j}, -1)) u = b (v - e^{G_i} k S)."""
    tokens = q.shape[2]
    size = min(chunk, tokens)
    missing = -tokens % size
    q, k, v = (F.pad(t, (0, 0, 0, missing)).unflatten(2, (-1, size)) for t in (q, k, v))
    decay, beta = (F.pad(t, (0, missing)).unflatten(2, (-1, size)) for t in (decay, beta))
    total = decay.cumsum(-1)
    apart = (total[..., :, None] - total[..., None, :]).tril()  # above the diagonal the exponential could overflow
    between = apart.exp().tril()
    system = torch.eye(size, dtype=k.dtype, device=k.device) + (beta[..., None] * (k @ k.mT) * between).tril(-1)
    sides = torch.cat([beta[..., None] * v, (beta * total.exp())[..., None] * k], -1)
    fresh, erased = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], -1
    )
    scores = (q @ k.mT) * between
    started, left = total.exp()[..., None] * q, (total[..., -1:] - total).exp()[..., None] * k
    read = []
    for c in range(q.shape[2]):
        written = fresh[:, :, c] - erased[:, :, c] @ memory
        read.append(started[:, :, c] @ memory + scores[:, :, c] @ written)
        memory = memory * total[:, :, c, -1, None, None].exp() + left[:, :, c].mT @ written
    return torch.cat(read, 2)[:, :, :tokens], memory
