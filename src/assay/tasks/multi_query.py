"""Find the values of several keys at once: one question asks for all of them.

RULER's `niah_multiquery`: four keys with a number each in a long text, and all four are asked for. What is needed lies
at several depths, so a policy that keeps one place of the context answers a part of the question.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654), niah_multiquery
object: MultiQuery
aliases: niah_multiquery, multi_query_needle
"""

from typing import Literal

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.haystack import GRID, PREAMBLE, draw_depths, draw_facts, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill, room_for
from assay.tasks.text import corpus


class MultiQuery(Generated):
    """`queries`: how many keys are asked for; `keys`: how many there are; `digits` of the numbers; `haystack`."""

    any_order = True

    def __init__(
        self, *, queries: int = 4, keys: int = 4, digits: int = 7, haystack: Literal["english", "code"] = "english"
    ):
        within("queries", queries, 1, GRID)
        within("keys", keys, 1, GRID)
        within("digits", digits, 1, 18)
        if queries > keys:
            raise AssayError(f"queries={queries}, keys={keys}: no more queries than keys")
        self.queries, self.keys, self.digits, self.haystack = queries, keys, digits, corpus(haystack)

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        first = int(rng.choice(self.haystack.sentences))
        depths = draw_depths(rng, self.keys)
        facts = draw_facts(rng, self.keys, self.digits)
        asked = facts[: self.queries]
        names = listed([fact.key for fact in asked])
        plural = "numbers" if len(asked) > 1 else "number"
        question = (
            f"What are the special magic {plural} for {names} in the text above? "
            f"The special magic {plural} for {names}, in this order:"
        )

        def build(words: int) -> Example:
            text, starts = weave(self.haystack, first, words, facts, depths)
            spans = value_spans(text, starts, facts, len(PREAMBLE))[: self.queries]
            numbers = [fact.value for fact in asked]
            meta = {"keys": [fact.key for fact in asked], "depths": depths[: self.queries]}
            meta["max_tokens"] = room_for(numbers, count)
            meta["text"] = f"{self.haystack.name}:{self.haystack.checksum}"
            answers = (f" {numbers[0]}", *numbers[1:])
            return Example(PREAMBLE + text + "\n", question, answers, tuple(sorted(spans)), meta)

        return fill(build, length, count, guess=length // 2)


def listed(names: list[str]) -> str:
    """`a`, `a and b`, `a, b, and c`."""
    if len(names) < 3:
        return " and ".join(names)
    return ", ".join(names[:-1]) + ", and " + names[-1]
