"""Find one of several facts of the same form: the others are there to mislead.

With `keys=4`, RULER's `niah_multikey_1`: four sentences of one form in a long text. With `keys=0`, its
`niah_multikey_2`: as many as fit, and no other text, so that every line of the context looks like the one that is asked
for.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654)
object: MultiKey
aliases: multi_key_needle
"""

from typing import Literal

import numpy as np

from assay.tasks.haystack import PREAMBLE, draw_facts, fact_and_others, facts_in, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.text import corpus
from assay.tasks.words import NOUNS


class MultiKey(Generated):
    """`keys`: how many keys have a number; 0 for as many as fit, without other text.

    `digits`: of the numbers; `haystack`: the text around them.
    """

    def __init__(self, *, keys: int = 4, digits: int = 7, haystack: Literal["english", "code"] = "english"):
        within("keys", keys, 0, len(NOUNS) ** 2)
        within("digits", digits, 1, 18)
        self.keys, self.digits, self.haystack = keys, digits, corpus(haystack)

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        return self._in_text(rng, length, count) if self.keys else self._only_facts(rng, length, count)

    def _in_text(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        first = int(rng.choice(self.haystack.sentences))
        depths = rng.random(self.keys).tolist()
        facts = draw_facts(rng, self.keys, self.digits)
        text_name = f"{self.haystack.name}:{self.haystack.checksum}"

        def build(words: int) -> Example:
            text, starts = weave(self.haystack, first, words, facts, depths)
            spans = value_spans(text, starts, facts, len(PREAMBLE))
            meta = {"key": facts[0].key, "depth": depths[0], "keys": self.keys, "text": text_name}
            return Example(PREAMBLE + text + "\n", facts[0].question, (f" {facts[0].value}",), (spans[0],), meta)

        return fill(build, length, count, guess=length // 2)

    def _only_facts(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        depth = float(rng.random())
        facts = fact_and_others(rng, facts_in(length, count, self.digits), self.digits)

        def build(more: int) -> Example:
            used = facts[: 1 + more]
            at = int(depth * len(used))
            lines = used[1 : at + 1] + used[:1] + used[at + 1 :]
            before = PREAMBLE + "".join(fact.sentence + "\n" for fact in lines[:at])
            context = before + "".join(fact.sentence + "\n" for fact in lines[at:])
            spans = value_spans(context, [len(before)], used[:1])
            meta = {"key": used[0].key, "depth": depth, "keys": len(used)}
            return Example(context, used[0].question, (f" {used[0].value}",), tuple(spans), meta)

        return fill(build, length, count, guess=length // 20)
