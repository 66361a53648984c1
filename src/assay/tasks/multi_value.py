"""Find every value that one key has been given: the same sentence, several times, each time with another number.

RULER's `niah_multivalue`: one key with four values, in a long text, at different depths of a grid of forty. An output
that names three of the four scores three quarters, in whatever order.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654), niah_multivalue
object: MultiValue
aliases: niah_multivalue, multi_value_needle
"""

from typing import Literal

import numpy as np

from assay.tasks.haystack import GRID, PREAMBLE, Fact, draw_depths, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill, room_for
from assay.tasks.text import corpus
from assay.tasks.words import draw_keys, draw_numbers


class MultiValue(Generated):
    """`values`: how many numbers the key has; `digits` of each; `haystack`: the text around them."""

    any_order = True

    def __init__(self, *, values: int = 4, digits: int = 7, haystack: Literal["english", "code"] = "english"):
        within("values", values, 1, GRID)
        within("digits", digits, 1, 18)
        self.values, self.digits, self.haystack = values, digits, corpus(haystack)

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        first = int(rng.choice(self.haystack.sentences))
        depths = draw_depths(rng, self.values)
        [key] = draw_keys(rng, 1)
        facts = [Fact(key, number) for number in draw_numbers(rng, self.values, self.digits)]
        question = (
            f"What are all the special magic numbers for {key} in the text above? "
            f"All the special magic numbers for {key} that it mentions are:"
        )

        def build(words: int) -> Example:
            text, starts = weave(self.haystack, first, words, facts, depths)
            spans = sorted(value_spans(text, starts, facts, len(PREAMBLE)))
            context = PREAMBLE + text + "\n"
            numbers = [context[start:end] for start, end in spans]
            meta = {"key": key, "depths": sorted(depths), "max_tokens": room_for(numbers, count)}
            meta["text"] = f"{self.haystack.name}:{self.haystack.checksum}"
            return Example(context, question, (f" {numbers[0]}", *numbers[1:]), tuple(spans), meta)

        return fill(build, length, count, guess=length // 2)
