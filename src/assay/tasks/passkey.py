"""Find a pass key among sentences that repeat without end.

The oldest of these tasks: a few words are said over and over, once a key is given, and it is asked for in the end. The
filler is so easy to tell from the key that a policy that keeps what is surprising must find it.

seam: task
row: -
source: Mohtashami & Jaggi 2023, Landmark Attention (arXiv:2305.16300); RULER's niah_single_1 has the same filler
object: Passkey
"""

import numpy as np

from assay.tasks.haystack import FILLER, within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.words import draw_numbers

_PREAMBLE = "A pass key is hidden in a lot of text that does not matter. Find the key and remember it.\n"


class Passkey(Generated):
    """`digits` of the key; `times`: how often the sentence that gives it says it."""

    def __init__(self, *, digits: int = 5, times: int = 2):
        within("digits", digits, 1, 18)
        within("times", times, 1, 8)
        self.digits, self.times = digits, times

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        depth = float(rng.random())
        [key] = draw_numbers(rng, 1, self.digits)
        given = f"The pass key is {key}." + f" Remember it: {key} is the pass key." * (self.times - 1) + "\n"

        def build(lines: int) -> Example:
            before = _PREAMBLE + FILLER * round(depth * lines)
            context = before + given + FILLER * (lines - round(depth * lines))
            at = [len(before) + k for k in _places(given, key)]
            spans = tuple((start, start + len(key)) for start in at)
            meta = {"depth": depth, "lines": lines}
            return Example(context, "What is the pass key? The pass key is", (f" {key}",), spans, meta)

        return fill(build, length, count, guess=length // 24)


def _places(text: str, word: str) -> list[int]:
    return [k for k in range(len(text)) if text.startswith(word, k)]
