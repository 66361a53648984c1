"""Softmax attention in which every token reads every other: the mixer of encoders.

out_t = W_o [ softmax_s(q_t . k_s * scale) v_s ]_heads over all valid tokens s. No state: a sequence is read at once.
x: "batch tokens width"; q: "batch heads tokens dim"; k, v: "batch kv_heads tokens dim".

seam: mixer
row: -
source: Devlin et al. 2018, BERT (arXiv:1810.04805)
object: Bidirectional
aliases: encoder_attention
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.attention import softmax_or_zero
from assay.core.build import build_spec
from assay.core.config import Spec
from assay.core.errors import AssayError, Refused
from assay.core.linear import Linear
from assay.core.mixer import Cost, Mixer
from assay.core.sites import site, wanted
from assay.core.state import State


class Bidirectional(Mixer):
    """`scale` is head_dim^-1/2. `position` is a position part or None."""

    causal = False
    sites = ("q", "k", "v", "scores", "pattern", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        kv_heads: int | None = None,
        bias: bool = False,
        position: Spec | dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        whole("bidirectional", heads=heads, kv_heads=kv_heads)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, width // heads
        if width % heads or heads % self.kv_heads:
            raise AssayError(f"width {width}, {heads} heads and {self.kv_heads} key-value heads do not divide evenly")
        self.q = Linear(width, width, bias=bias)
        self.k = Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v = Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.out = Linear(width, width, bias=bias)
        self.position = build_spec(position, "position", self.head_dim) if position else None

    def start(self, batch: int) -> State:
        raise Refused("a bidirectional mixer keeps no state: give it the whole sequence at once")

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: State | None = None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], None]:
        if state is not None:
            raise Refused("a bidirectional mixer takes no state: give it the whole sequence at once")
        if valid is not None:
            x = torch.where(valid[..., None], x, 0)
        q, k, v = (linear(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        if self.position is not None:
            q, k = self.position.rotate(q, k, positions)
        q, k, v = site(self, "q", q), site(self, "k", k), site(self, "v", v)
        z = site(self, "z", self._read(q, k, v, positions, valid))
        y = self.out(z.transpose(1, 2).flatten(2))
        return (y if valid is None else torch.where(valid[..., None], y, 0)), None

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, valid: Tensor | None
    ) -> Float[Tensor, "batch heads tokens dim"]:
        mask = None if valid is None else valid[:, None, None]
        biased = self.position is not None and self.position.biased
        if biased or wanted(self, "scores", "pattern"):
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
            scores = q @ k.mT * self.head_dim**-0.5
            if biased:
                added = self.position.bias(positions, positions[:, None].expand(-1, self.heads, -1))
                scores = scores + added.to(scores.dtype)
            scores = site(self, "scores", scores if mask is None else scores.masked_fill(~mask, -torch.inf))
            return site(self, "pattern", softmax_or_zero(scores)) @ v
        # a sequence without valid tokens reads zeros instead of dividing by nothing
        mask = None if mask is None else mask | ~mask.any(-1, keepdim=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.heads != self.kv_heads)

    def cost(self, tokens: int) -> Cost:
        matrices = sum(m.weight.numel() for m in (self.q, self.k, self.v, self.out))
        flops = 2 * tokens * matrices + 4 * tokens * tokens * self.heads * self.head_dim
        return Cost(sum(p.numel() for p in self.parameters()), flops, 0)
