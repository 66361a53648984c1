"""Four-bit integers, two in a byte, with an offset and a scale for each group of numbers.

code = round((x - low) / scale) in 0..15, scale = (high - low) / 15 over `group` neighbours on the last axis.

seam: format
row: -
source: Liu et al. 2024, KIVI (arXiv:2402.02750), asymmetric groups
object: Int4
"""

from __future__ import annotations

from assay.efficiency.quantize.common import Levels


class Int4(Levels):
    """`group`: numbers that share an offset and a scale (0: the whole last axis). Both are held in float16."""

    bits = 4

    def __init__(self, group: int = 32) -> None:
        super().__init__(group)
