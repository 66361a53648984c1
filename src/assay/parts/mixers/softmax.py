"""Softmax attention: multi-head, grouped or multi-query, whole or in a sliding window.

out_t = W_o [ softmax_s(q_t . k_s * scale) v_s ]_heads over the keys s <= t, for a window t - s < window.
x: "batch tokens width"; q: "batch heads tokens dim"; k, v: "batch kv_heads tokens dim".

seam: mixer
row: -
source: Vaswani et al. 2017 (arXiv:1706.03762); grouped heads: Ainslie et al. 2023 (arXiv:2305.13245)
object: SoftmaxAttention
aliases: attention, mha, gqa, mqa
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core import attention
from assay.core.arguments import whole
from assay.core.build import build_spec
from assay.core.config import NormConfig, Spec
from assay.core.errors import AssayError
from assay.core.linear import SHORT, Linear, narrowed
from assay.core.mixer import Cost, Mixer, bias_of
from assay.core.norms import Norm
from assay.core.reading import Query, read_held
from assay.core.sites import site, wanted
from assay.core.state import AttentionState, Observed, Turn
from assay.core.store import Pages, Store


class SoftmaxAttention(Mixer):
    """`scale` defaults to head_dim^-1/2. `softcap` c bounds scores as c tanh(s / c). `qk_norm`: a norm on each head's q and k,
    or with `qk_norm_whole` over all heads of a token together.

    `position` is a position part (`{"part": "rope", "options": {...}}`) or None.
    """

    sites = ("q_unrotated", "k_unrotated", "q", "k", "v", "scores", "pattern", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        qk_norm: dict[str, Any] | None = None,
        qk_norm_whole: bool = False,
        bias: bool = False,
        out_bias: bool | None = None,
        position: Spec | dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        whole("softmax", heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
        if head_dim is None and width % heads:
            raise AssayError(f"width {width} does not divide into {heads} heads: give head_dim")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, head_dim or width // heads
        if heads % self.kv_heads:
            raise AssayError(f"{heads} heads cannot share {self.kv_heads} key-value heads evenly")
        self.window, self.softcap = window, softcap
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.q = Linear(width, heads * self.head_dim, bias=bias)
        self.k = Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v = Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.out = Linear(heads * self.head_dim, width, bias=bias if out_bias is None else out_bias)
        over_q, over_k = (heads, self.kv_heads) if qk_norm_whole else (1, 1)
        self.qk_norm_whole = qk_norm_whole
        self.q_norm = Norm(over_q * self.head_dim, NormConfig(**qk_norm)) if qk_norm else None
        self.k_norm = Norm(over_k * self.head_dim, NormConfig(**qk_norm)) if qk_norm else None
        self.position = build_spec(position, "position", self.head_dim) if position else None

    def start(self, batch: int) -> AttentionState:
        return AttentionState(batch, self.kv_heads, self.window, device=self.q.weight.device)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: AttentionState | None = None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], AttentionState | None]:
        seen = self._project(x, positions, valid)
        if state is None:
            z = self._read_alone(seen)
        else:
            first = not any(state.store.counts)
            gradients = torch.is_grad_enabled() and seen.q.requires_grad
            state.store.append(seen.k, seen.v, positions=positions, valid=valid, functional=gradients)
            for observer in state.observers:
                observer(state.store, seen)
            # what is encoded at once is always read from its codes, so that cuts make no difference
            alone = first and self._plain(seen) and not state.store.coded_at_once
            z = self._read_alone(seen) if alone else self._read_store(seen, state.store, state)
            state.advance(x.shape[1], valid)
        z = site(self, "z", z)
        y = self.out(z.transpose(1, 2).flatten(2)).to(x.dtype)
        return (y if valid is None else torch.where(valid[..., None], y, 0)), state

    def _project(self, x: Tensor, positions: Tensor, valid: Tensor | None) -> Observed:
        if valid is not None:
            x = torch.where(valid[..., None], x, 0)
        inner = narrowed(x, getattr(self.q, "weight", None))
        q, k, v = (linear(inner) for linear in (self.q, self.k, self.v))
        if self.qk_norm_whole:
            q, k = self._normed(q, k)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        if not self.qk_norm_whole:
            q, k = self._normed(q, k)
        q, k, v = q.to(x.dtype), k.to(x.dtype), v.to(x.dtype)
        q_before, k_before = site(self, "q_unrotated", q), site(self, "k_unrotated", k)
        q, k = (q_before, k_before) if self.position is None else self.position.rotate(q_before, k_before, positions)
        q, k, v = site(self, "q", q), site(self, "k", k), site(self, "v", v)
        if self._held_in(k) != k.dtype:
            alone = k is k_before
            k, v = k.to(self._held_in(k)), v.to(self._held_in(k))
            k_before = k if alone else k_before
        return Observed(
            q,
            k,
            v,
            q_before,
            k_before,
            positions,
            valid,
            self.scale,
            self.softcap,
            self._turn(),
            bias_of(self.position),
        )

    def _turn(self) -> Turn | None:
        if self.position is None:
            return None
        rotate = self.position.rotate
        return lambda x, positions: rotate(x, x[:, :0], positions)[0]

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (q, k) if self.q_norm is None or self.k_norm is None else (self.q_norm(q), self.k_norm(k))

    def _held_in(self, k: Tensor) -> torch.dtype:
        """Keys and values of a model stored in 16 bits are held in 16 bits too."""
        stored = getattr(self.k, "weight", k).dtype
        return stored if stored in SHORT else k.dtype

    def _read_alone(self, seen: Observed) -> Float[Tensor, "batch heads tokens dim"]:
        """The new tokens are the whole sequence."""
        if self._plain(seen):
            return attention.attend_causal(seen.q, seen.k, seen.v, self.scale, self.window)
        store = Store(*seen.k.shape[:2])
        store.append(seen.k, seen.v, positions=seen.positions, valid=seen.valid)
        return self._read_store(seen, store)

    def _read_store(
        self, seen: Observed, store: Store, state: AttentionState | None = None
    ) -> Float[Tensor, "batch heads tokens dim"]:
        if self._explicit():
            if state is not None:
                state.every_score("capped, biased or recorded scores")
            return self._read_explicit(seen, store)
        query = Query(seen.q, seen.positions, self.scale, self.window, seen.valid)
        return read_held(query, store) if state is None else state.read(query)

    def _read_explicit(self, seen: Observed, store: Store) -> Float[Tensor, "batch heads tokens dim"]:
        pages, held = store.padded(), max(store.counts)
        scores, v = attention.scores_of(
            seen.q,
            Pages(pages.k[:, :held], pages.v[:, :held], pages.positions[:, :held], pages.owner),
            seen.positions,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
            bias=seen.bias,
        )
        pattern = attention.softmax_or_zero(site(self, "scores", scores))
        return site(self, "pattern", pattern) @ v

    def _plain(self, seen: Observed) -> bool:
        return seen.valid is None and not self._explicit()

    def _explicit(self) -> bool:
        """Fused attention has no score matrix to cap, to add a bias to, or to listen to."""
        biased = self.position is not None and self.position.biased
        return self.softcap is not None or biased or wanted(self, "scores", "pattern")

    def cost(self, tokens: int) -> Cost:
        parameters = sum(p.numel() for p in self.parameters())
        matrices = sum(m.weight.numel() for m in (self.q, self.k, self.v, self.out))
        reach = min(self.window or tokens, tokens)
        pairs = reach * (reach + 1) // 2 + (tokens - reach) * reach
        state_bytes = AttentionState.bytes_after(tokens, self.kv_heads, self.head_dim, self.window, self.k.weight.dtype)
        return Cost(parameters, 2 * tokens * matrices + 4 * pairs * self.heads * self.head_dim, state_bytes)
