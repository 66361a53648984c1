"""Mixers that keep something for each token, after a policy has dropped some: what is read equals a naive masked softmax."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.mixing import close, every_causal_mixer, feed
from tests.contracts.probe import SIZES, make, randn
from torch import Tensor

from assay.core.mixer import Mixer
from assay.core.sites import Tap
from assay.core.state import Observed
from assay.core.store import Store


class Naive:
    """Attention by loops over sequences, heads and queries, from what an observer is shown and the mixer's position adds."""

    def __init__(self, mixer: Mixer) -> None:
        self.position = getattr(mixer, "position", None)
        self.k: dict[tuple[int, int, int], Tensor] = {}
        self.v: dict[tuple[int, int, int], Tensor] = {}

    def keep(self, store: Store, indices: Tensor) -> None:
        flat = store.flat()
        kept = {
            (o // store.kv_heads, o % store.kv_heads, p)
            for o, p in zip(flat.owner[indices].tolist(), flat.positions[indices].tolist(), strict=True)
        }
        self.k = {at: k for at, k in self.k.items() if at in kept}

    def take_in(self, seen: Observed) -> None:
        batch, kv_heads, tokens, _ = seen.k.shape
        for b in range(batch):
            for t in range(tokens):
                for h in range(kv_heads):
                    at = (b, h, int(seen.positions[b, t]))
                    self.k[at], self.v[at] = seen.k[b, h, t], seen.v[b, h, t]

    def read(self, seen: Observed, window: int | None) -> Tensor:
        batch, heads, tokens, _ = seen.q.shape
        kv_heads = seen.k.shape[1]
        out = torch.zeros(batch, heads, tokens, seen.v.shape[-1], dtype=seen.v.dtype)
        for b in range(batch):
            for h in range(heads):
                for t in range(tokens):
                    now, owner = int(seen.positions[b, t]), (b, h // (heads // kv_heads))
                    read = [at for at in self.k if at[:2] == owner and 0 <= now - at[2] < (window or 10**9)]
                    scores = torch.stack([seen.q[b, h, t] @ self.k[at] * seen.scale for at in read])
                    if seen.softcap is not None:
                        scores = seen.softcap * (scores / seen.softcap).tanh()
                    if self.position is not None and self.position.biased:
                        at = torch.tensor([place[2] for place in read])
                        bias = self.position.bias(torch.tensor([[now]]), at.expand(1, heads, -1))
                        scores = scores + bias[0, h, 0]
                    out[b, h, t] = scores.softmax(0) @ torch.stack([self.v[at] for at in read])
        return out


def what_is_read(mixer: Mixer) -> str:
    """The site of what attention gives: `read` where a projection lies between it and `z`."""
    return "read" if "read" in mixer.sites else "z"


def uneven(store: Store) -> Tensor:
    """Indices to keep: none, everything, one, a third, ... owner by owner."""
    owner, draw = store.flat().owner, torch.Generator().manual_seed(3)
    kept = []
    for at in range(store.owners):
        mine = (owner == at).nonzero()[:, 0]
        count = [0, len(mine), 1, len(mine) // 3][at % 4]
        kept.append(mine[torch.randperm(len(mine), generator=draw)[:count]])
    return torch.cat(kept)


@every_causal_mixer
@torch.no_grad()
def test_uneven_heads_read_as_a_naive_masked_softmax_does(name, chosen):
    mixer = make("mixer", name, chosen)
    naive = Naive(mixer)
    state = mixer.start(2)
    if state.store is None:
        pytest.skip("keeps nothing for each token")
    x, heard, wanted = randn(2, 150, SIZES["width"]), [], []
    state.observers = (lambda _, seen: naive.take_in(seen),)
    feed(mixer, x[:, :127], state, [60, 67])
    state.observers += (lambda _, seen: wanted.append(naive.read(seen, state.window)),)
    mixer.tap = Tap("", {what_is_read(mixer): [lambda _, z: heard.append(z) or z]})
    for cut in ([1, 1, 5], [3, 1, 12]):
        indices = uneven(state.store)
        naive.keep(state.store, indices)
        state.store.keep(indices)
        assert state.window is not None or not state.store.dense, "heads this uneven are held in pages"
        feed(mixer, x[:, -sum(cut) :], state, cut)
    close(torch.cat(heard, 2), torch.cat(wanted, 2))


@every_causal_mixer
@torch.no_grad()
def test_even_gaps_are_not_taken_for_a_full_cache(name, chosen):
    """All heads drop equally many tokens, so the layout stays dense while positions have holes."""
    mixer = make("mixer", name, chosen)
    naive = Naive(mixer)
    state = mixer.start(2)
    if state.store is None:
        pytest.skip("keeps nothing for each token")
    x, heard, wanted = randn(2, 40, SIZES["width"]), [], []
    state.observers = (lambda _, seen: naive.take_in(seen),)
    feed(mixer, x[:, :30], state, [30])
    state.observers += (lambda _, seen: wanted.append(naive.read(seen, state.window)),)
    mixer.tap = Tap("", {what_is_read(mixer): [lambda _, z: heard.append(z) or z]})
    flat = state.store.flat()
    indices = (flat.positions % 3 == 0).nonzero()[:, 0]
    naive.keep(state.store, indices)
    state.store.keep(indices)
    feed(mixer, x[:, 30:], state, [1, 1, 8])
    close(torch.cat(heard, 2), torch.cat(wanted, 2))


@every_causal_mixer
@torch.no_grad()
def test_a_rolled_back_store_reads_what_is_left(name, chosen):
    mixer = make("mixer", name, chosen)
    state = mixer.start(2)
    if state.store is None:
        pytest.skip("keeps nothing for each token")
    x = randn(2, 127, SIZES["width"])
    feed(mixer, x, state, [127])
    indices = uneven(state.store)
    state.store.keep(indices)
    twin = state.fork()
    feed(mixer, randn(2, 9, SIZES["width"], seed=4), state, [8, 1])
    state.rollback(9)
    close(feed(mixer, x[:, :7], state, [1, 6]), feed(mixer, x[:, :7], twin, [1, 6]))
