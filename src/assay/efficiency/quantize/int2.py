"""Two-bit integers, four in a byte, with an offset and a scale for each group of numbers.

code = round((x - low) / scale) in 0..3, scale = (high - low) / 3 over `group` neighbours on the last axis. With groups of 32,
offset and scale cost half as much again as the codes: three bits a number.

seam: format
row: -
source: Liu et al. 2024, KIVI (arXiv:2402.02750), asymmetric groups
object: Int2
"""

from __future__ import annotations

from assay.efficiency.quantize.common import Levels


class Int2(Levels):
    """`group`: numbers that share an offset and a scale (0: the whole last axis). Both are held in float16."""

    bits = 2

    def __init__(self, group: int = 32) -> None:
        super().__init__(group)
