"""Find a fact that the context states twice, among others that it states twice as well.

Every fact is said in the same words at two places drawn by the seed. Of two copies one can go without loss, so a policy
that keeps both of some and neither of others wastes its budget: `meta["facts"]` says where all copies lie, for counting
how many facts a kept set still covers.

seam: task
row: D51
source: TwinKV, row D51; wording after Hsieh et al. 2024, RULER (arXiv:2404.06654)
object: Duplicated
"""

import numpy as np

from assay.tasks.haystack import PREAMBLE, Fact, draw_facts, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.text import corpus
from assay.tasks.words import NOUNS


class Duplicated(Generated):
    """`facts`: how many; `copies` of each; `digits` of the numbers.

    `meta["facts"]`: for each fact its key, value, and the (start, end) characters of its `sentences` and of the values
    in them, `spans`.
    """

    def __init__(self, *, facts: int = 8, copies: int = 2, digits: int = 7):
        within("facts", facts, 1, len(NOUNS))
        within("copies", copies, 1, 64)
        within("digits", digits, 1, 18)
        self.facts, self.copies, self.digits, self.haystack = facts, copies, digits, corpus("english")

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        first = int(rng.choice(self.haystack.sentences))
        facts = [fact for fact in draw_facts(rng, self.facts, self.digits) for _ in range(self.copies)]
        depths = rng.random(len(facts)).tolist()

        def build(words: int) -> Example:
            text, starts = weave(self.haystack, first, words, facts, depths)
            spans = value_spans(text, starts, facts, len(PREAMBLE))
            told = [
                {
                    "key": fact.key,
                    "value": fact.value,
                    "spans": tuple(sorted(spans[k : k + self.copies])),
                    "sentences": _whole(fact, spans[k : k + self.copies]),
                }
                for k, fact in list(enumerate(facts))[:: self.copies]
            ]
            context = PREAMBLE + text + "\n"
            return Example(
                context,
                facts[0].question,
                (f" {facts[0].value}",),
                told[0]["spans"],
                {"key": facts[0].key, "facts": told},
            )

        return fill(build, length, count, guess=length // 2)


def _whole(fact: Fact, spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((start - fact.value_at, end + 1) for start, end in spans))
