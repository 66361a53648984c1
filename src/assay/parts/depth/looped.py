"""A stretch of blocks run several times: depth without parameters.

blocks 0..first-1 once, first..last-1 `times` times, the rest once.

seam: depth
row: -
source: Dehghani et al. 2018, Universal Transformers (arXiv:1807.03819); Saunshi et al. 2025, looped Transformers (arXiv:2502.17416)
object: Looped
"""

from __future__ import annotations

from assay.core.arguments import whole
from assay.core.depth import Schedule, Step
from assay.core.errors import AssayError


class Looped(Schedule):
    """`last` None: up to the end."""

    def __init__(self, times: int = 2, first: int = 0, last: int | None = None) -> None:
        whole("looped", times=times, last=last)
        whole("looped", 0, first=first)
        self.times, self.first, self.last = times, first, last

    def steps(self, blocks: int) -> tuple[Step, ...]:
        last = blocks if self.last is None else self.last
        if not self.first < last <= blocks:
            raise AssayError(f"looped: blocks {self.first} to {last} of {blocks} are no stretch")
        loops = [Step(block, loop) for loop in range(self.times) for block in range(self.first, last)]
        return (*(Step(b) for b in range(self.first)), *loops, *(Step(b) for b in range(last, blocks)))
