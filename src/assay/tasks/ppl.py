"""Predict how real text goes on: likelihood of the true continuation of a context.

A window of English or code is cut in two. The context is what a policy may compress; the answer is the true
continuation, whose log-probability gives the perplexity, and whose predictions give the KL divergence from the model
with its whole cache.

seam: task
row: -
source: -
object: Perplexity
aliases: perplexity, nll
"""

from typing import Literal

import numpy as np

from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated
from assay.tasks.text import corpus
from assay.tasks.windows import window


class Perplexity(Generated):
    """`text`: which of the texts that Python carries.

    `continuation`: tokens that are predicted, on top of the context's length.
    """

    metric = "nll"

    def __init__(self, *, text: Literal["english", "code"] = "english", continuation: int = 128):
        within("continuation", continuation, 1, float("inf"))
        self.text, self.continuation = corpus(text), continuation

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        return window(self.text, rng, length, self.continuation, count)
