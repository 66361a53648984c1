"""Answer several questions, one after another, from one context that was compressed before the first of them.

The facts lie at different depths of a long text; every turn asks for another one, and what was asked and answered
before stays in the cache. A policy that compresses for one question pays at the next, and what it frees between turns
must not be what the last turn needs. The score is the share of turns answered rightly.

seam: task
row: -
source: Li et al. 2025, SCBench (arXiv:2412.10319), many requests on one shared context; facts after RULER
object: MultiTurn
"""

from typing import Literal

import numpy as np

from assay.tasks.haystack import GRID, PREAMBLE, draw_depths, draw_facts, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.text import corpus


class MultiTurn(Generated):
    """`turns`: how many questions; `digits` of the numbers; `haystack`: the text around them."""

    def __init__(self, *, turns: int = 4, digits: int = 4, haystack: Literal["english", "code"] = "english"):
        within("turns", turns, 1, GRID)
        within("digits", digits, 1, 18)
        self.turns, self.digits, self.haystack = turns, digits, corpus(haystack)

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        first = int(rng.choice(self.haystack.sentences))
        depths = draw_depths(rng, self.turns)
        facts = draw_facts(rng, self.turns, self.digits)
        later = tuple("\n" + fact.question for fact in facts[1:])

        def build(words: int) -> Example:
            text, starts = weave(self.haystack, first, words, facts, depths)
            spans = tuple(sorted(value_spans(text, starts, facts, len(PREAMBLE))))
            meta = {"keys": [fact.key for fact in facts], "depths": depths, "turns": later}
            meta["text"] = f"{self.haystack.name}:{self.haystack.checksum}"
            answers = tuple(f" {fact.value}" for fact in facts)
            return Example(PREAMBLE + text + "\n", facts[0].question, answers, spans, meta)

        return fill(build, length, count, guess=length // 2)
