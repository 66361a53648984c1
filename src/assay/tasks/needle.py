"""Find one fact that is hidden in a long real text.

A sentence that gives one key its number is put at a depth drawn by the seed; the question is a sentence that the number
completes. Construction and wording are RULER's `niah_single_2` (word keys, number values), with a text that needs no
download as the haystack.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654)
object: Needle
aliases: niah
"""

from typing import Literal

import numpy as np

from assay.tasks.haystack import PREAMBLE, draw_facts, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.text import corpus


class Needle(Generated):
    """`digits`: of the number; `haystack`: the text it is hidden in.

    `depth`: None (drawn, uniform) or a place from 0, the beginning, to 1, the end.
    """

    def __init__(
        self, *, digits: int = 7, haystack: Literal["english", "code"] = "english", depth: float | None = None
    ):
        within("digits", digits, 1, 18)
        if depth is not None:
            within("depth", depth, 0, 1, whole=False)
        self.digits, self.depth, self.haystack = digits, depth, corpus(haystack)

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        first = int(rng.choice(self.haystack.sentences))
        drawn = float(rng.random())
        depth = drawn if self.depth is None else self.depth
        [fact] = draw_facts(rng, 1, self.digits)

        def build(words: int) -> Example:
            text, starts = weave(self.haystack, first, words, [fact], [depth])
            spans = value_spans(text, starts, [fact], len(PREAMBLE))
            meta = {"key": fact.key, "depth": depth, "text": f"{self.haystack.name}:{self.haystack.checksum}"}
            return Example(PREAMBLE + text + "\n", fact.question, (f" {fact.value}",), tuple(spans), meta)

        return fill(build, length, count, guess=length // 2)
