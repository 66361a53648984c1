"""Multi-head latent attention: the keys and values of all heads are read from one small latent a token.

c_t = norm(W_down x_t) is the latent and r_t = rope(W_rope x_t) a rotary key that all heads share. Head h scores
q_h . W_k,h c_s + q_rope,h . r_s and reads W_v,h c_s. The up-projections are absorbed into the query and the output, so
that attention runs over the latent itself, as over one key-value head: its key is [c_s ; r_s], its value c_s.
x: "batch tokens width"; stored a token: latent + rope_dim numbers, for all heads together.

seam: mixer
row: -
source: DeepSeek-AI 2024, DeepSeek-V2 (arXiv:2405.04434)
object: MLA
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.core import attention
from assay.core.arguments import whole
from assay.core.build import build_spec
from assay.core.config import NormConfig, Spec
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.mixer import Cost, Mixer, bias_of
from assay.core.norms import Norm
from assay.core.pages import Pages
from assay.core.reading import Query
from assay.core.sites import site, wanted
from assay.core.state import AttentionState, Observed, Turn


class MLA(Mixer):
    """`latent`: numbers a token; `rope_dim`: of the shared rotary key; `position`: what rotates it."""

    sites = ("latent", "q", "k", "scores", "pattern", "read", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        latent: int = 16,
        rope_dim: int = 8,
        position: Spec | dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        whole("mla", heads=heads, head_dim=head_dim, latent=latent, rope_dim=rope_dim)
        if head_dim is None and width % heads:
            raise AssayError(f"width {width} does not divide into {heads} heads: give head_dim")
        self.heads, self.head_dim, self.latent, self.rope_dim = heads, head_dim or width // heads, latent, rope_dim
        self.scale = (self.head_dim + rope_dim) ** -0.5
        self.q = Linear(width, heads * (self.head_dim + rope_dim))
        self.down, self.rope = Linear(width, latent), Linear(width, rope_dim)
        self.norm = Norm(latent, NormConfig())
        self.key_up = nn.Parameter(torch.randn(heads, self.head_dim, latent) * latent**-0.5)
        self.value_up = nn.Parameter(torch.randn(heads, latent, self.head_dim) * latent**-0.5)
        self.out = Linear(heads * self.head_dim, width)
        self.position = build_spec(position or Spec("rope"), "position", rope_dim)

    def start(self, batch: int) -> AttentionState:
        state = AttentionState(batch, 1, device=self.norm.weight.device)
        state.store.values_in_keys = self.latent
        return state

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: AttentionState | None = None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], AttentionState | None]:
        if valid is not None:
            x = torch.where(valid[..., None], x, 0)
        seen = self._project(x, positions, valid)
        held = self.start(len(x)) if state is None else state
        gradients = torch.is_grad_enabled() and seen.q.requires_grad
        held.store.append(seen.k, seen.k[..., :0], positions=positions, valid=valid, functional=gradients)
        for observer in held.observers:
            observer(held.store, seen)
        read = site(self, "read", self._read(seen, held))
        held.advance(x.shape[1], valid)
        z = site(self, "z", torch.einsum("bhtl,hld->bhtd", read, self.value_up.to(read.dtype)))
        y = self.out(z.transpose(1, 2).flatten(2))
        return (y if valid is None else torch.where(valid[..., None], y, 0)), state

    def _project(self, x: Tensor, positions: Tensor, valid: Tensor | None) -> Observed:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        content, rotary = q.split([self.head_dim, self.rope_dim], -1)
        latent = site(self, "latent", self.norm(self.down(x)))[:, None]
        key = self.rope(x)[:, None]
        content = torch.einsum("bhtd,hdl->bhtl", content, self.key_up.to(content.dtype))
        before = torch.cat([content, rotary], -1), torch.cat([latent, key], -1)
        rotary, key = self.position.rotate(rotary, key, positions)
        q, k = site(self, "q", torch.cat([content, rotary], -1)), site(self, "k", torch.cat([latent, key], -1))
        return Observed(
            q,
            k,
            k[..., : self.latent],
            *before,
            positions,
            valid,
            self.scale,
            turn=self._turn(),
            bias=bias_of(self.position),
        )

    def _turn(self) -> Turn:
        rotate, latent = self.position.rotate, self.latent

        def turn(x: Tensor, positions: Tensor) -> Tensor:
            still, rotary = x[..., :latent], x[..., latent:]
            return torch.cat([still, rotate(rotary, rotary[:, :0], positions)[0]], -1)

        return turn

    def _read(self, seen: Observed, state: AttentionState) -> Float[Tensor, "batch heads tokens latent"]:
        if not (self.position.biased or wanted(self, "scores", "pattern")):
            return state.read(Query(seen.q, seen.positions, self.scale, None, seen.valid))
        state.every_score("biased or recorded scores")
        pages, held = state.store.padded(), max(state.store.counts)
        cut = Pages(pages.k[:, :held], pages.v[:, :held], pages.positions[:, :held], pages.owner)
        scores, v = attention.scores_of(
            seen.q, cut, seen.positions, scale=self.scale, window=None, softcap=None, bias=self.position.bias
        )
        return site(self, "pattern", attention.softmax_or_zero(site(self, "scores", scores))) @ v

    def cost(self, tokens: int) -> Cost:
        matrices = sum(m.weight.numel() for m in (self.q, self.down, self.rope, self.out))
        matrices += self.key_up.numel() + self.value_up.numel()
        pairs = tokens * (tokens + 1) // 2
        flops = 2 * tokens * matrices + 2 * pairs * self.heads * (2 * self.latent + self.rope_dim)
        state = AttentionState.bytes_after(tokens, 1, self.latent + self.rope_dim, None, torch.float32, dim_v=0)
        return Cost(sum(p.numel() for p in self.parameters()), flops, state)
