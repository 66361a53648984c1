"""The law of readers, for every registered one: what a plan does not name is never touched, and reading all of it is dense attention."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tests.contracts.under_test import parts
from torch import Tensor

from assay.core import registry
from assay.core.attention import attend_pages
from assay.core.pages import Pages
from assay.core.reading import Plan, Query, Reader
from assay.core.store import Store

every_reader = pytest.mark.parametrize("name", [card.name for card in parts("reader")])
LAYOUTS = ["dense", "uneven", "padded"]


def made(name: str, **options: Any) -> Reader:
    kind = registry.get(name, "reader")
    known = inspect.signature(kind).parameters
    return kind(**{n: v for n, v in options.items() if n in known})


def store_of(layout: str, tokens: int = 150, kv_heads: int = 2, dim: int = 8, seed: int = 0) -> Store:
    draw = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(2, kv_heads, tokens, dim, generator=draw, dtype=torch.float64) for _ in "kv")
    valid = torch.arange(tokens) >= torch.tensor([[0], [40]]) if layout == "padded" else None
    positions = torch.arange(tokens).expand(2, -1) if valid is None else (valid.cumsum(1) - 1).clamp(min=0)
    store = Store(2, kv_heads, page=16)
    store.append(k * 1.5, v, positions=positions, valid=valid)
    if layout == "uneven":
        share = torch.rand(len(store.flat().owner), generator=draw)
        store.keep((share < torch.tensor([1.0, 0.2, 0.6, 0.3])[store.flat().owner]).nonzero()[:, 0])
    return store


def query_of(store: Store, tokens: int = 1, seed: int = 5) -> Query:
    q = torch.randn(2, 4, tokens, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    last = torch.stack(
        [store.flat().positions[store.flat().owner // store.kv_heads == b].max() for b in range(2)]
    ).long()
    return Query(q, last[:, None] - torch.arange(tokens).flip(0), 8**-0.5, None)


def dense(query: Query, pages: Pages, kv_heads: int) -> tuple[Tensor, Tensor]:
    return attend_pages(query.q, pages, query.positions, scale=query.scale, window=None, kv_heads=kv_heads)


@every_reader
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [1, 7])
def test_reading_every_page_is_dense_attention(name, layout, tokens):
    store = store_of(layout)
    query, reader = query_of(store, tokens), made(name, pages=10_000)
    got = reader.read(query, store, reader.plan(query, store, None))
    out, lse = dense(query, store.pages(), store.kv_heads)
    torch.testing.assert_close(got.out, out, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.lse, lse, rtol=0, atol=1e-12)


@every_reader
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_planned_is_never_touched(name, layout):
    store = store_of(layout)
    query, reader = query_of(store), made(name, pages=3, size=8)
    plan = reader.plan(query, store, None)
    wanted = reader.read(query, store, plan)
    k, v = plan.pages.k.clone(), plan.pages.v.clone()
    k[~plan.read] = v[~plan.read] = torch.nan
    poisoned = Plan(Pages(k, v, plan.pages.positions, plan.pages.owner), plan.read, plan.notes)
    got = reader.read(query, store, poisoned)
    assert torch.equal(got.out, wanted.out)
    assert got.out.isfinite().all()


@every_reader
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_from_the_step_before_plans_the_same_as_a_fresh_one(name, layout):
    store, reader, previous = store_of(layout), made(name, pages=4, size=8), None
    draw = torch.Generator().manual_seed(9)
    for step in range(20):
        k, v = (torch.randn(2, 2, 1, 8, generator=draw, dtype=torch.float64) for _ in "kv")
        at = query_of(store, seed=step).positions + 1
        store.append(k, v, positions=at)
        if step == 11:
            store.keep(torch.arange(0, len(store.flat().owner), 2))
        query = query_of(store, seed=step)
        previous = reader.plan(query, store, previous)
        assert torch.equal(previous.read, reader.plan(query, store, None).read)


@every_reader
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_certificate_bounds_the_unread_mass_and_beats_the_trivial_bound(name, layout):
    store = store_of(layout)
    query, reader = query_of(store, seed=11), made(name, pages=6, size=8)
    plan = reader.plan(query, store, None)
    bound = reader.certificate(query, store, plan)
    if bound is None:
        return
    _, everything = dense(query, store.pages(), store.kv_heads)
    unread = 1 - (reader.read(query, store, plan).lse - everything).exp()
    assert (unread <= bound + 1e-9).all()
    assert bound.median() < 1
    assert (bound >= 0).all()


@every_reader
def test_pairs_count_what_was_multiplied(name):
    store = store_of("dense")
    query, reader = query_of(store, 3), made(name, pages=2, size=8)
    plan = reader.plan(query, store, None)
    size = plan.pages.positions.shape[1]
    assert reader.read(query, store, plan).pairs == int(plan.read.sum()) * size * 2 * 3
