"""Parts as a user writes them, outside the package and without a card: a mixer, a policy, a reader."""

import torch

from assay.core.linear import Linear
from assay.core.mixer import Cost, Mixer
from assay.core.policy import Policy
from assay.core.reading import Plan, Reader
from assay.core.sites import site
from assay.efficiency.sparse.common import read_pages, small_pages
from assay.parts.mixers.common import Packing, RecurrentState


class RunningMean(Mixer):
    """y_t = W mean over s <= t of x_s: the plainest recurrence."""

    sites = ("z",)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = Linear(width, width)

    def start(self, batch: int) -> RecurrentState:
        weight = self.out.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        return RecurrentState(batch, weight.device, total=weight.new_zeros(batch, weight.shape[1], dtype=dtype))

    def forward(self, x, state=None, *, positions, valid=None):
        held = self.start(len(x)) if state is None else state
        packing = Packing(valid)
        sums = held["total"][:, None] + packing.pack(x).cumsum(1)
        count = held.seen[:, None] + torch.arange(1, x.shape[1] + 1, device=x.device)
        z = site(self, "z", (sums / count[..., None]).to(x.dtype))
        if state is not None:
            state.advance(x.shape[1], valid, total=sums[:, -1].clone())
        return packing.unpack(self.out(z)), state

    def cost(self, tokens: int) -> Cost:
        weight = self.out.weight
        return Cost(weight.numel(), 2 * tokens * weight.numel(), weight.shape[1] * max(weight.element_size(), 4))


class EveryOther(Policy):
    """Even positions before odd ones, recent before old."""

    def score(self, layer, store):
        at = store.flat().positions.float()
        return at - (at % 2) * 1e6


class Newest(Reader):
    """The newest pages alone."""

    def __init__(self, pages: int = 4, size: int = 16) -> None:
        self.pages, self.size = pages, size

    def plan(self, query, store, previous):
        pages = small_pages(store, self.size)
        newest = pages.positions.amax(1)
        read = torch.zeros_like(newest, dtype=torch.bool)
        for owner in pages.owner.unique():
            mine = (pages.owner == owner).nonzero()[:, 0]
            read[mine[newest[mine].argsort(descending=True)[: self.pages]]] = True
        return Plan(pages, read & (newest >= 0))

    def read(self, query, store, plan):
        return read_pages(query, store, plan)
