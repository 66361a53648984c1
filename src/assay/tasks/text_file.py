"""Predict how a text of your own goes on: windows of a file, as `text:FILE`.

The file is UTF-8. Each example cuts a window of it in two at a place drawn by the seed; the answer is the true
continuation (see `ppl`).

seam: task
name: text
row: -
source: -
object: TextFile
"""

from pathlib import Path

import numpy as np

from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated
from assay.tasks.text import Corpus, read
from assay.tasks.windows import window


class TextFile(Generated):
    """`file`: its path; `continuation`: tokens that are predicted, on top of the context's length."""

    metric = "nll"

    def __init__(self, file: str, *, continuation: int = 128):
        within("continuation", continuation, 1, float("inf"))
        self.text, self.continuation = Corpus(Path(file).name, read(file)), continuation

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        return window(self.text, rng, length, self.continuation, count)
