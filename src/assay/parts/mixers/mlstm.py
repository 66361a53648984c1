"""mLSTM: a matrix memory with exponential input gates, held in a scale of its own so that nothing overflows.

m_t = max(f_t + m_{t-1}, i_t),  S_t = e^{f_t + m_{t-1} - m_t} S_{t-1} + e^{i_t - m_t} k_t v_t^T, n_t likewise from k_t alone,
h_t = S_t^T q_t / max(|n_t . q_t|, e^{-m_t}), with f_t the log-sigmoid of the forget gate and i_t the input gate's exponent; k is
scaled by dim^-1/2. n is held as S's last column, of values that are all 1. In the layer, W_up x splits into u and z; q and k
come from c = silu(convolution(u)) and v from u, each by a matrix of small blocks; the gates come from q, k and v; the output is
W_out [(norm(h) + s * c) * silu(z)], norm being a layer norm of each head without bias.
x: "batch tokens width"; S: "batch heads dim dim+1"; m: "batch heads".

seam: mixer
row: -
source: Beck et al. 2024, xLSTM (arXiv:2405.04517), section 2.3 and figure 11; initialisation as in its code, but for `out`
object: MLSTM
aliases: xlstm
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.sites import site
from assay.parts.mixers.common import Packing, RecurrentState, causal_convolution
from assay.parts.mixers.decayed import in_chunks
from assay.parts.mixers.recurrent import RecurrentMixer, by_head, joined


class MLSTM(RecurrentMixer):
    """`expand`: inner width over width. `block`: rows of a block of q, k and v. `taps`: of the convolution."""

    sites = ("q", "k", "v", "forget", "input", "state", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        expand: int = 2,
        block: int = 4,
        taps: int = 4,
        chunk: int = 64,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        whole("mlstm", heads=heads, expand=expand, block=block, taps=taps, chunk=chunk)
        inner = expand * width
        if inner % heads or inner % block:
            raise AssayError(
                f"mlstm: {expand} x width {width} does not divide into {heads} heads and blocks of {block}"
            )
        self.heads, self.dim, self.taps, self.chunk, self.eps = heads, inner // heads, taps, chunk, eps
        self.up, self.out = Linear(width, 2 * inner), Linear(inner, width)
        nn.init.normal_(self.up.weight, std=math.sqrt(2 / (5 * width)))
        small = math.sqrt(2 / (5 * inner))
        self.q, self.k, self.v = (nn.Parameter(torch.randn(inner // block, block, block) * small) for _ in "qkv")
        self.input, self.forget = Linear(3 * inner, heads, bias=True), Linear(3 * inner, heads, bias=True)
        nn.init.zeros_(self.input.weight)
        nn.init.zeros_(self.forget.weight)
        nn.init.normal_(self.input.bias, std=0.1)
        self.forget.bias = nn.Parameter(torch.linspace(3, 6, heads))
        bound = 1 / math.sqrt(taps)
        self.convolution = nn.Parameter(torch.empty(inner, taps).uniform_(-bound, bound))
        self.convolution_bias = nn.Parameter(torch.empty(inner).uniform_(-bound, bound))
        self.skip, self.norm = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.ones(inner))
        self.products = 3 * inner * block + self.convolution.numel() + 2 * inner * (self.dim + 1)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        inner = self.heads * self.dim
        return {"memory": (self.heads, self.dim, self.dim + 1), "scale": (self.heads,), "tail": (self.taps - 1, inner)}

    def mix(
        self,
        x: Float[Tensor, "batch tokens width"],
        held: RecurrentState,
        packing: Packing,
        positions: Int[Tensor, "..."],
    ) -> tuple[Float[Tensor, "batch tokens width"], dict[str, Tensor]]:
        u, z = self.up(x).chunk(2, -1)
        convolved, tail = causal_convolution(wide(u), wide(self.convolution), held["tail"], packing.lengths)
        c = F.silu(convolved + self.convolution_bias).to(x.dtype)
        q, k, v = blockwise(c, self.q), blockwise(c, self.k), blockwise(u, self.v)
        gates = torch.cat([q, k, v], -1)
        forget = F.logsigmoid(wide(self.forget(gates)))
        forget = site(self, "forget", packing.silence(forget).transpose(1, 2))
        write = site(self, "input", wide(self.input(gates)).transpose(1, 2))
        if packing.valid is not None:  # what is not there is not written
            write = write.masked_fill(~packing.front[:, None], -torch.inf)
        q, k, v = (by_head(wide(t), self.heads) for t in (q, k, v))
        q, k, v = site(self, "q", q), site(self, "k", k * self.dim**-0.5), site(self, "v", v)
        rule = step_by_step if x.shape[1] == 1 else chunked
        h, memory, scale = rule(q, k, v, forget, write, held["memory"], held["scale"], self.chunk)
        normed = joined(F.layer_norm(h, (self.dim,), eps=self.eps)) * self.norm
        z = site(self, "z", ((normed + self.skip * c) * F.silu(z)).to(x.dtype))
        return self.out(z), {"memory": site(self, "state", memory), "scale": scale, "tail": tail}


def blockwise(
    x: Float[Tensor, "batch tokens width"], weight: Float[Tensor, "blocks out block"]
) -> Float[Tensor, "batch tokens width"]:
    parts = x.unflatten(-1, (len(weight), -1))
    return torch.einsum("btnd,nod->btno", parts, weight.to(x.dtype)).flatten(2)


def with_ones(v: Float[Tensor, "*rest dim"]) -> Float[Tensor, "*rest dim+1"]:
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)


def normalised(read: Float[Tensor, "*rest dim+1"], scale: Float[Tensor, "*rest"]) -> Float[Tensor, "*rest dim"]:
    """The bound on e^{-m} is out of reach of gates that mean anything; it keeps gradients finite."""
    least = (-scale).clamp(-80, 80).exp()[..., None]
    return read[..., :-1] / torch.maximum(read[..., -1:].abs(), least)


def step_by_step(
    q: Float[Tensor, "batch heads tokens dim"],
    k: Float[Tensor, "batch heads tokens dim"],
    v: Float[Tensor, "batch heads tokens dim"],
    forget: Float[Tensor, "batch heads tokens"],
    write: Float[Tensor, "batch heads tokens"],
    memory: Float[Tensor, "batch heads dim dim+1"],
    scale: Float[Tensor, "batch heads"],
    chunk: int = 1,
) -> tuple[Float[Tensor, "batch heads tokens dim"], Tensor, Tensor]:
    """The recurrence as it is written. h does not depend on m, so the maximum passes no gradient."""
    read, values = [], with_ones(v)
    for t in range(q.shape[2]):
        after = torch.maximum(forget[:, :, t] + scale, write[:, :, t]).detach()
        kept, written = (forget[:, :, t] + scale - after).exp(), (write[:, :, t] - after).exp()
        memory = memory * kept[..., None, None]
        memory = memory + k[:, :, t, :, None] @ (written[..., None] * values[:, :, t])[:, :, None]
        scale = after
        read.append(normalised(torch.einsum("bhkv,bhk->bhv", memory, q[:, :, t]), scale))
    return torch.stack(read, 2), memory, scale


def chunked(
    q: Float[Tensor, "batch heads tokens dim"],
    k: Float[Tensor, "batch heads tokens dim"],
    v: Float[Tensor, "batch heads tokens dim"],
    forget: Float[Tensor, "batch heads tokens"],
    write: Float[Tensor, "batch heads tokens"],
    memory: Float[Tensor, "batch heads dim dim+1"],
    scale: Float[Tensor, "batch heads"],
    chunk: int,
) -> tuple[Float[Tensor, "batch heads tokens dim"], Tensor, Tensor]:
    """The same in chunks. With F_i the forget gates summed within a chunk, m_i - F_i is the largest of m before the chunk and
    of i_j - F_j for j <= i: how a token j weighs at i is e^{i_j - F_j - (m_i - F_i)}, never above 1."""
    tokens = q.shape[2]
    q, k, values, forget = in_chunks(chunk, q, k, with_ones(v), forget[..., None])
    total = forget[..., 0].cumsum(-1)
    write = F.pad(write, (0, -tokens % q.shape[3]), value=-torch.inf).unflatten(2, (-1, q.shape[3])) - total
    highest = write.detach().cummax(-1).values
    scales = [scale]
    for c in range(q.shape[2]):
        scales.append(total[:, :, c, -1] + torch.maximum(scales[-1], highest[:, :, c, -1]).detach())
    start = torch.stack(scales[:-1], 2)[..., None]
    level = torch.maximum(start, highest).detach()
    later = torch.ones(q.shape[3], q.shape[3], dtype=torch.bool, device=q.device).triu(1)
    weights = (write[..., None, :] - level[..., None]).masked_fill(later, -torch.inf).exp()
    inside = ((q @ k.mT) * weights) @ values
    added = ((write - level[..., -1:]).exp()[..., None] * k).mT @ values
    begun = (start - level).exp()
    before = []
    for c in range(q.shape[2]):
        before.append(memory)
        memory = memory * begun[:, :, c, -1, None, None] + added[:, :, c]
    read = inside + begun[..., None] * (q @ torch.stack(before, 2))
    return normalised(read, total + level).flatten(2, 3)[:, :, :tokens], memory, scales[-1]
