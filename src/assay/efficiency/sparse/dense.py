"""Read everything that is held.

seam: reader
row: -
source: Vaswani et al. 2017 (arXiv:1706.03762)
object: Dense
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.reading import Out, Plan, Query, Reader
from assay.core.store import Store
from assay.efficiency.sparse.common import read_pages


class Dense(Reader):
    def plan(self, query: Query, store: Store, previous: Plan | None) -> Plan:
        pages = store.pages()
        return Plan(pages, torch.ones(len(pages.owner), dtype=torch.bool, device=pages.owner.device))

    def read(self, query: Query, store: Store, plan: Plan) -> Out:
        return read_pages(query, store, plan)

    def certificate(self, query: Query, store: Store, plan: Plan) -> Float[Tensor, "batch heads tokens"]:
        return query.q.new_zeros(query.q.shape[:3])
