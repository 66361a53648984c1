"""Every block once, in order.

seam: depth
row: -
source: Vaswani et al. 2017 (arXiv:1706.03762)
object: Plain
"""

from __future__ import annotations

from assay.core.depth import Schedule, Step


class Plain(Schedule):
    def steps(self, blocks: int) -> tuple[Step, ...]:
        return tuple(Step(block) for block in range(blocks))
