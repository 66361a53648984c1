"""What several cache policies need: padded rows of a store, attention received by each stored token, draws, and wrapping."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.attention import visible
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Bias, Observed
from assay.core.store import Flat, Store

SCORES = 2**23  # scores that exist at one time


def unit(keys: Float[Tensor, "*rest dim"]) -> Float[Tensor, "*rest dim"]:
    return torch.nn.functional.normalize(wide(keys), dim=-1)


def among(part: str, **options: tuple[str, tuple[str, ...]]) -> None:
    """Raises AssayError for an option whose value is none of its choices."""
    for name, (value, choices) in options.items():
        if value not in choices:
            raise AssayError(f"{part}: {name}={value!r}; choose {' or '.join(choices)}")


class Rows:
    """Entries of `flat()` as one row an owner, filled up on the right, and back."""

    def __init__(self, flat: Flat, owners: int) -> None:
        self.owner, self.owners = flat.owner, owners
        self.held = torch.bincount(flat.owner, minlength=owners)
        self.longest = int(self.held.max()) if len(flat.owner) else 0
        self.mask: Bool[Tensor, "owners longest"] = (
            torch.arange(self.longest, device=flat.owner.device) < self.held[:, None]
        )

    def pad(self, values: Float[Tensor, "stored *rest"], filler: float = 0) -> Float[Tensor, "owners longest *rest"]:
        if len(values) == self.owners * self.longest:
            return values.unflatten(0, (self.owners, self.longest))
        rows = values.new_full((self.owners, self.longest, *values.shape[1:]), filler)
        rows[self.mask] = values
        return rows

    def flat(self, rows: Float[Tensor, "owners longest *rest"]) -> Float[Tensor, "stored *rest"]:
        return rows[self.mask]


def attention_received(
    q: Float[Tensor, "batch heads tokens dim"],
    q_positions: Int[Tensor, "batch tokens"],
    q_valid: Bool[Tensor, "batch tokens"] | None,
    store: Store,
    *,
    scale: float,
    softcap: float | None,
    bias: Bias | None = None,
) -> Float[Tensor, "stored"]:
    """Softmax attention of these queries to each stored key, summed over the queries and averaged over a group's heads.

    Invalid queries give nothing; keys later than a query receive nothing from it. Computed in blocks of queries over the
    store's own pages, about `SCORES` scores at a time.
    """
    pages = store.pages()
    keys = wide(pages.k)
    total = keys.new_zeros(pages.positions.shape)
    block = max(1, SCORES // (q.shape[1] // store.kv_heads * max(1, pages.positions.numel())))
    for begin in range(0, q.shape[2], block):
        part = slice(begin, begin + block)
        valid = None if q_valid is None else q_valid[:, part]
        total += _received(q[:, :, part], q_positions[:, part], valid, store, keys, scale, softcap, bias)
    return total.flatten()[store.slots()]


def group_bias(
    bias: Bias,
    q_positions: Int[Tensor, "rows queries"],
    k_positions: Int[Tensor, "rows keys"],
    owner: Int[Tensor, "rows"],
    kv_heads: int,
    heads: int,
) -> Float[Tensor, "rows group queries keys"]:
    """What a layer adds to the scores of the query heads that share row r's keys, which are `owner[r]`'s."""
    added = bias(q_positions, k_positions[:, None].expand(-1, heads, -1))
    return added.unflatten(1, (kv_heads, -1))[torch.arange(len(owner), device=owner.device), owner % kv_heads]


def _received(
    q: Tensor,
    q_positions: Tensor,
    valid: Tensor | None,
    store: Store,
    keys: Float[Tensor, "pages page dim"],
    scale: float,
    softcap: float | None,
    bias: Bias | None,
) -> Float[Tensor, "pages page"]:
    pages, group = store.pages(), q.shape[1] // store.kv_heads
    tokens, size = q.shape[2], keys.shape[1]
    rows = wide(q).reshape(store.owners, group * tokens, -1) * scale
    scores = (rows[pages.owner] @ keys.mT).unflatten(1, (group, tokens))
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    sequence = pages.owner // store.kv_heads
    if bias is not None:
        scores = scores + group_bias(
            bias, q_positions[sequence], pages.positions, pages.owner, store.kv_heads, q.shape[1]
        )
    mask = visible(q_positions[sequence], pages.positions, None)
    if valid is not None:
        mask &= valid[sequence][..., None]
    scores = scores.masked_fill_(~mask[:, None], -torch.inf)
    lowest = torch.finfo(scores.dtype).min
    peak = scores.amax(-1)
    if not store.dense:
        of = pages.owner[:, None, None].expand_as(peak)
        peak = scores.new_full((store.owners, group, tokens), -torch.inf).scatter_reduce(0, of, peak, "amax")
        peak = peak[pages.owner]
    weights = scores.sub_(peak.clamp(min=lowest)[..., None]).exp_()
    mass = weights.sum(-1)
    if not store.dense:
        mass = mass.new_zeros(store.owners, group, tokens).index_add(0, pages.owner, mass)[pages.owner]
    share = torch.where(mass > 0, 1 / mass, 0) / group
    return torch.bmm(share.view(len(share), 1, -1), weights.view(len(share), -1, size))[:, 0]


def draws(
    seed: tuple[int, ...], owner: Int[Tensor, "stored"], positions: Int[Tensor, "stored"], kv_heads: int
) -> Float[Tensor, "stored"]:
    """Uniform numbers in [0, 1), one for each head and position: the same whatever else is stored, in whatever batch.

    A counter-based generator (the finaliser of splitmix64, Steele et al. 2014) in place of a running one, so that no
    draw has to be remembered.
    """
    mixed = torch.zeros_like(positions, dtype=torch.int64)
    for number in (*(_signed(one % 2**64) for one in seed), owner % kv_heads, positions):
        mixed = _mix(mixed * 31 + number + _signed(0x9E3779B97F4A7C15))
    return (mixed >> 11 & (1 << 53) - 1).double() / (1 << 53)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _mix(x: Int[Tensor, "stored"]) -> Int[Tensor, "stored"]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * _signed(factor)
    return x ^ (x >> 31 & (1 << 33) - 1)


class Wrapper(Policy):
    """A policy that changes what another one does. It takes over the other's pins unless it is given its own."""

    def __init__(
        self, inner: Policy, *, sink: int | None = None, recent: int | None = None, prompt: bool | None = None
    ) -> None:
        super().__init__(
            sink=inner.sink if sink is None else sink,
            recent=inner.recent if recent is None else recent,
            prompt=inner.prompt if prompt is None else prompt,
        )
        self.inner: Policy = inner
        self.bounded = inner.bounded

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.inner.observe(layer, store, seen)

    def finish_prefill(self, layer: int, store: Store) -> None:
        self.inner.finish_prefill(layer, store)

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        return self.inner.score(layer, store)

    def allot(
        self, scores: Mapping[int, Float[Tensor, "stored"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        return self.inner.allot(scores, stores, budget)

    def keep(
        self, layer: int, store: Store, scores: Float[Tensor, "stored"], budget: Int[Tensor, "owners"]
    ) -> Int[Tensor, "kept"]:
        return self.inner.keep(layer, store, scores, budget)

    def spares(self, stores: Mapping[int, Store]) -> Bool[Tensor, "batch"] | None:
        return self.inner.spares(stores)

    def after_keep(self, layer: int, store: Store) -> None:
        self.inner.after_keep(layer, store)

    def limits(self, kv_heads: list[int]) -> str | None:
        return self.inner.limits(kv_heads)
