"""Quest reads the pages that could score high, and bounds hold."""

from __future__ import annotations

import pytest
import torch

from assay.core.errors import AssayError
from assay.core.reading import Query
from assay.core.store import Store
from assay.efficiency.sparse.quest import Quest, _bounds


def planted(tokens: int = 128, at: int = 53) -> tuple[Store, Query]:
    draw = torch.Generator().manual_seed(0)
    k, v = (torch.randn(1, 1, tokens, 8, generator=draw) * 0.1 for _ in "kv")
    q = torch.randn(1, 1, 1, 8, generator=draw)
    k[0, 0, at] = 6 * q[0, 0, 0]
    store = Store(1, 1)
    store.append(k, v, positions=torch.arange(tokens)[None])
    return store, Query(q, torch.tensor([[tokens - 1]]), 8**-0.5, None)


def test_the_page_with_the_planted_key_is_read():
    store, query = planted()
    reader = Quest(pages=3, size=16)
    plan = reader.plan(query, store, None)
    assert plan.read.nonzero()[:, 0].tolist() == [0, 53 // 16, 7]
    assert float(reader.certificate(query, store, plan).max()) < 0.5


def test_no_key_of_a_page_scores_above_its_bound():
    store, query = planted()
    plan = Quest(pages=2, size=16).plan(query, store, None)
    scores = torch.einsum("pd,npd->np", query.q[0, 0] * query.scale, plan.pages.k)
    assert (scores.amax(1) <= _bounds(query, store, plan.pages, plan.notes)[:, 0, 0] + 1e-6).all()


def test_a_step_reads_the_keys_of_changed_pages_only():
    store, query = planted()
    reader = Quest(pages=2, size=16)
    plan = reader.plan(query, store, None)
    store.arrays["k"][:, :112] = torch.nan  # all but the last page's keys
    store.append(torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8), positions=torch.tensor([[128]]))
    again = reader.plan(query, store, plan)
    assert torch.equal(again.notes.low[:7], plan.notes.low[:7])
    assert again.notes.low.isfinite().all()


def test_fewer_than_two_pages_are_refused():
    with pytest.raises(AssayError, match="at least 2"):
        Quest(pages=1)
