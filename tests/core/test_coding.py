"""A store in groups of tokens: next to a store without a format, under random sequences of everything it can do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.core.build import build
from assay.core.errors import AssayError
from assay.core.pages import distinct_bytes
from assay.core.sizes import bytes_holding
from assay.core.store import Store

DIM, HEADS, GROUP, RECENT = 8, 2, 4, 6


def store_of(batch: int = 1, **options) -> Store:
    return Store(batch, HEADS, format=build(f"kivi(bits=4, group={GROUP}, recent={RECENT})", "format"), **options)


class Both:
    """A store in groups and one without a format that is given the same."""

    def __init__(self, mine: Store, plain: Store, seen: list[int]) -> None:
        self.mine, self.plain, self.seen = mine, plain, seen

    def fork(self) -> Both:
        return Both(self.mine.fork(), self.plain.fork(), list(self.seen))

    def append(self, tokens: int, valid: torch.Tensor | None, made: torch.Generator) -> None:
        batch = len(self.seen)
        k, v = (torch.randn(batch, HEADS, tokens, DIM, generator=made, dtype=torch.float64) for _ in "kv")
        real = torch.ones(batch, tokens, dtype=torch.bool) if valid is None else valid
        at = (torch.tensor(self.seen)[:, None] + real.cumsum(1) - 1).clamp(min=0)
        k = k.masked_fill(~real[:, None, :, None], torch.nan)
        for store in (self.mine, self.plain):
            store.append(k, v, positions=at, valid=valid)
            store.write_column("mine/column", k[..., 0].nan_to_num())
        self.seen = [s + int(r.sum()) for s, r in zip(self.seen, real, strict=True)]

    def check(self) -> None:
        mine, plain = self.mine, self.plain
        assert mine.counts == plain.counts
        a, b = mine.flat(), plain.flat()
        assert torch.equal(a.owner, b.owner) and torch.equal(a.positions, b.positions)
        assert torch.equal(mine.column("mine/column"), plain.column("mine/column"))
        row = mine.arrays["row"].flatten()[mine.slots()]
        full = row < 0
        assert torch.equal(a.k[full], b.k[full]) and torch.equal(a.v[full], b.v[full])
        assert (a.k - b.k).abs().max() < 0.4
        assert (a.v - b.v).abs().max() < 0.4, "half a step of 15 between extremes of normal numbers"
        assert torch.bincount(a.owner[full], minlength=mine.owners).tolist() == mine.full
        padded = mine.padded()
        assert torch.equal(padded.k[padded.positions >= 0], a.k)
        used = set(row.tolist())
        rows = len(mine.tables["full.k"]), len(mine.tables["group.low"])
        assert used == {*range(-rows[0], 0), *range(rows[1])}, "every row of the tables has a token that names it"
        assert mine.bytes == distinct_bytes(mine.tensors())


@settings(max_examples=40, deadline=None)
@example(3, list("asksrasasor"))
@given(st.integers(0, 10**6), st.lists(st.sampled_from("aapskrof"), min_size=3, max_size=12))
def test_it_holds_what_a_store_without_a_format_holds(seed, actions):
    made = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=made))

    both, others = Both(store_of(2, page=4, grain=4), Store(2, HEADS, page=4, grain=4), [0, 0]), []
    both.append(number(1, 40), None, made)
    for action in actions:
        before = None
        if action == "a":
            both.append(number(1, 9), None, made)
        elif action == "p":
            tokens = number(1, 9)
            both.append(tokens, torch.rand(len(both.seen), tokens, generator=made) < 0.6, made)
        elif action == "s":
            before = both.mine.flat().k
            settled = both.mine.settle()
            assert settled == (not torch.equal(both.mine.flat().k, before))
            assert max(both.mine.full) < RECENT + GROUP
        elif action == "k":
            draw = torch.rand(sum(both.mine.counts), generator=made)
            keep = (draw < torch.tensor([0.9, 0.2, 0.5, 0.1] * 3)[both.mine.flat().owner]).nonzero()[:, 0]
            if not len(keep):
                continue
            before = both.mine.flat()
            both.mine.keep(keep), both.plain.keep(keep)
            assert torch.equal(both.mine.flat().k, before.k[keep]) and torch.equal(both.mine.flat().v, before.v[keep])
        elif action == "r":
            limits = [max(1, s - number(0, 5)) for s in both.seen]
            for store in (both.mine, both.plain):
                store.roll_back(torch.tensor(limits))
            both.seen = [min(s, limit) for s, limit in zip(both.seen, limits, strict=True)]
        elif action == "o":
            index = torch.tensor([number(0, len(both.seen) - 1) for _ in range(number(1, 3))])
            both = Both(both.mine.reorder(index), both.plain.reorder(index), [both.seen[i] for i in index.tolist()])
        elif action == "f":
            others.append((both, both.mine.flat()))
            both = both.fork()
        if not sum(both.mine.counts):
            return
        both.check()
    for other, was in others:
        assert torch.equal(other.mine.flat().k, was.k) and torch.equal(other.mine.flat().v, was.v)


@pytest.mark.parametrize("tokens", [1, RECENT, RECENT + GROUP - 1, RECENT + GROUP, 50])
def test_bytes_are_as_reckoned_and_no_number_is_kept_twice(tokens):
    store, drawn = store_of(), torch.randn(1, HEADS, tokens, DIM)
    store.append(drawn, drawn + 1, positions=torch.arange(tokens)[None])
    store.settle()
    groups = max(0, tokens - RECENT) // GROUP
    full, slots = tokens - GROUP * groups, -(-tokens // 16) * 16
    slot = 2 * DIM // 2 + DIM // GROUP * 4 + 4 + 4  # codes, values' scales, position, row
    tables = full * 2 * DIM * 4 + groups * 2 * DIM * 2
    assert store.bytes == HEADS * (slots * slot + tables + 8)
    assert int(bytes_holding(store, torch.tensor([tokens] * HEADS))) == store.bytes


def test_keys_that_are_replaced_are_held_in_full_and_encoded_in_their_turn():
    store, drawn = store_of(), torch.randn(1, HEADS, 30, DIM)
    store.append(drawn, drawn + 1, positions=torch.arange(30)[None])
    store.settle()
    before, new = store.flat(), torch.randn(3, DIM)
    at = torch.tensor([2, 29, 40])
    store.set_keys(at, new)
    after = store.flat()
    assert torch.equal(after.k[at], new) and torch.equal(after.v, before.v)
    others = torch.ones(60, dtype=torch.bool)
    others[at] = False
    assert torch.equal(after.k[others], before.k[others])
    store.append(drawn, drawn, positions=torch.arange(30, 60)[None])
    assert store.settle() and max(store.full) < RECENT + GROUP


def test_a_store_of_latents_has_no_values_of_its_own():
    store, drawn = store_of(), torch.randn(1, HEADS, 30, DIM)
    store.values_in_keys = 3
    store.append(drawn, drawn[..., :0], positions=torch.arange(30)[None])
    store.settle()
    pages = store.pages()
    assert torch.equal(pages.v, pages.k[..., :3]) and "full.v" not in store.tables
    store.keep(torch.arange(0, 60, 2))
    assert store.counts == [15, 15]


def test_axes_that_do_not_fit_are_named():
    six = torch.zeros(1, HEADS, 2, 6)
    with pytest.raises(AssayError, match="groups of 4 do not divide an axis of 6"):
        store_of().append(six, six, positions=torch.arange(2)[None])
    with pytest.raises(AssayError, match="does not fill whole bytes"):
        store_of().append(torch.zeros(1, HEADS, 2, 7), torch.zeros(1, HEADS, 2, 0), positions=torch.arange(2)[None])
    for bad in ("kivi(bits=3)", "kivi(group=0)", "kivi(recent=-1)", "kivi(group=6)", "int2(group=6)"):
        with pytest.raises(AssayError):
            build(bad, "format")
