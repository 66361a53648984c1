"""The store against a plain list of tokens per owner, under random sequences of everything it can do."""

import weakref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.core.errors import AssayError
from assay.core.pages import EMPTY, distinct_bytes
from assay.core.store import Store

DIM, HEADS = 3, 2


class Ledger:
    """What a store should hold: for each owner a list of (position, key, value, column)."""

    def __init__(self, batch: int) -> None:
        self.seen = [0] * batch
        self.rows: list[list[tuple]] = [[] for _ in range(batch * HEADS)]

    def fork(self) -> "Ledger":
        copy = Ledger(len(self.seen))
        copy.seen, copy.rows = list(self.seen), [list(r) for r in self.rows]
        return copy

    def check(self, store: Store) -> None:
        assert store.counts == [len(r) for r in self.rows]
        if not store.arrays:
            return
        flat, every = store.flat(), [entry for row in self.rows for entry in row]
        assert flat.owner.tolist() == [o for o, row in enumerate(self.rows) for _ in row]
        assert flat.positions.tolist() == [e[0] for e in every]
        assert flat.k[:, 0].tolist() == [e[1] for e in every]
        assert flat.v[:, -1].tolist() == [e[2] for e in every]
        assert store.column("mine/column").tolist() == [e[3] for e in every]
        pages = store.pages()
        assert (pages.owner.diff() >= 0).all() and len(pages.owner) == len(pages.k)
        assert int((pages.positions != EMPTY).sum()) == sum(store.counts)
        padded = store.padded()
        assert len(padded.owner) == store.owners
        assert [p[p != EMPTY].tolist() for p in padded.positions] == [[e[0] for e in row] for row in self.rows]


def append(store: Store, ledger: Ledger, tokens: int, valid: torch.Tensor | None, made: torch.Generator) -> None:
    batch = store.batch
    k, v = (torch.randn(batch, HEADS, tokens, DIM, generator=made, dtype=torch.float64) for _ in range(2))
    column = torch.randn(batch, HEADS, tokens, generator=made, dtype=torch.float64)
    real = torch.ones(batch, tokens, dtype=torch.bool) if valid is None else valid
    at = torch.tensor(ledger.seen)[:, None] + real.cumsum(1) - 1
    if valid is not None:
        k = k.masked_fill(~valid[:, None, :, None], torch.nan)
    store.append(k, v, positions=at.clamp(min=0), valid=valid)
    store.write_column("mine/column", column)
    for b in range(batch):
        for t in range(tokens):
            if real[b, t]:
                for h in range(HEADS):
                    entry = (int(at[b, t]), float(k[b, h, t, 0]), float(v[b, h, t, -1]), float(column[b, h, t]))
                    ledger.rows[b * HEADS + h].append(entry)
        ledger.seen[b] += int(real[b].sum())


@settings(max_examples=60)
@example(88, list("rakkrrr"))  # small pages of which nothing is left
@given(st.integers(0, 10**6), st.lists(st.sampled_from("apkrofsn"), min_size=3, max_size=14))
def test_it_holds_what_a_plain_list_would_hold(seed, actions):
    made = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=made))

    store, ledger = Store(2, HEADS, page=4, grain=4), Ledger(2)
    append(store, ledger, number(1, 30), None, made)
    others: list[tuple[Store, Ledger]] = []
    for action in actions:
        if action == "a":
            append(store, ledger, number(1, 9), None, made)
        elif action == "p":  # padding anywhere, all of it too
            tokens = number(1, 9)
            append(store, ledger, tokens, torch.rand(store.batch, tokens, generator=made) < 0.6, made)
        elif action in "kn":  # uneven, or all heads alike
            draw = torch.rand(sum(store.counts), generator=made)
            chance = torch.tensor([0.9, 0.2, 0.5, 0.05] * 2)[store.flat().owner] if action == "k" else 0.6
            keep = (draw < chance).nonzero()[:, 0]
            store.keep(keep[torch.randperm(len(keep), generator=made)])
            held, every = set(keep.tolist()), iter(range(len(draw)))
            ledger.rows = [[e for e in row if next(every) in held] for row in ledger.rows]
        elif action == "r":
            limits = [max(0, s - number(0, 5)) for s in ledger.seen]
            store.roll_back(torch.tensor(limits))
            ledger.seen = limits
            ledger.rows = [[e for e in row if e[0] < limits[o // HEADS]] for o, row in enumerate(ledger.rows)]
        elif action == "o":
            index = [number(0, store.batch - 1) for _ in range(number(1, 3))]
            store, old = store.reorder(torch.tensor(index)), ledger
            ledger = Ledger(len(index))
            ledger.seen = [old.seen[i] for i in index]
            ledger.rows = [list(old.rows[i * HEADS + h]) for i in index for h in range(HEADS)]
        elif action in "fs":  # go on with the copy, or with the original
            copy = (store.fork(), ledger.fork())
            others.append((store, ledger) if action == "f" else copy)
            store, ledger = copy if action == "f" else (store, ledger)
        ledger.check(store)
    for other in others:
        other[1].check(other[0])


def filled(tokens: int, batch: int = 1, **options: int) -> Store:
    store, made = Store(batch, HEADS, **options), torch.Generator().manual_seed(0)
    k, v = (torch.randn(batch, HEADS, tokens, DIM, generator=made) for _ in range(2))
    store.append(k, v, positions=torch.arange(tokens).expand(batch, -1))
    return store


def test_memory_follows_what_is_kept_whatever_the_layout():
    for kept, pages, size in (
        (torch.cat([torch.arange(100), 1024 + torch.arange(100)]), 2, 112),
        (torch.cat([torch.arange(1000), 1024 + torch.arange(10)]), 17, 64),
    ):
        store = filled(1024)
        old = weakref.ref(store.arrays["k"])
        store.keep(kept)
        assert old() is None
        assert store.arrays["k"].shape == (pages, size, DIM)
        assert store.bytes == pages * size * (2 * DIM * 4 + 4) + store.owner.untyped_storage().nbytes()


def test_views_of_one_storage_count_once_and_whole():
    whole = torch.zeros(100)
    assert distinct_bytes([whole[:10], whole[50:], torch.zeros(3)]) == 412


def test_notes_and_columns_are_counted_copied_reordered_and_forgotten():
    store = filled(8, batch=3)
    plain = store.bytes
    store.notes["mine/note"] = torch.arange(3.0)
    store.set_column("mine/column", torch.arange(48.0))
    assert store.bytes == plain + 12 + 2 * 3 * 16 * 4
    assert store.remembered() == ["mine/column", "mine/note"]
    turned, copy = store.reorder(torch.tensor([2, 2, 0])), store.fork()
    store.notes["mine/note"].zero_()
    store.arrays["mine/column"].zero_()
    assert turned.notes["mine/note"].tolist() == [2, 2, 0] and copy.notes["mine/note"].tolist() == [0, 1, 2]
    assert turned.column("mine/column").tolist()[:16] == list(range(32, 48))
    for name in copy.remembered():
        copy.forget(name)
    assert copy.bytes == plain and not copy.remembered()


def test_gradients_flow_through_appends_and_what_is_kept():
    store = Store(1, HEADS, grain=4)
    pieces = [torch.randn(1, HEADS, n, DIM, requires_grad=True) for n in (5, 1, 3)]
    at = 0
    for piece in pieces:
        store.append(piece, piece * 2, positions=torch.arange(at, at + piece.shape[2])[None])
        at += piece.shape[2]
    store.keep(torch.tensor([0, 5, 8, 9, 17]))
    store.flat().k.sum().backward()
    assert pieces[0].grad[0, :, :, 0].tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert pieces[1].grad[0, :, :, 0].tolist() == [[1], [0]]
    assert pieces[2].grad[0, :, :, 0].tolist() == [[0, 0, 1], [0, 0, 1]]


def test_bad_input():
    store = filled(4)
    with pytest.raises(AssayError, match="2 x 2 heads appended to a store of 1 x 2"):
        store.append(torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 3), positions=torch.zeros(2, 1))
    store.keep(torch.tensor([0, 4]))
    with pytest.raises(AssayError, match="right after an append"):
        store.write_column("mine/column", torch.zeros(1, 2, 4))
