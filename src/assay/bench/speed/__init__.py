"""How fast a model loads, reads a prompt and decodes, beside transformers on the same weights and the machine's memory."""

from assay.bench.speed.measure import run
from assay.bench.speed.result import Ratio, Speed

__all__ = ["Ratio", "Speed", "run"]
