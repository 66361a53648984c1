"""Find a fact that is unlike what stands around it and like much that stands elsewhere.

Stretches of prose alternate with stretches of look-alikes, sentences of the very form of the fact that is asked for.
That fact stands alone in the midst of a stretch of prose: over the whole context its form is nothing special (an anchor
that averages all keys misses it), within its stretch it is.

seam: task
row: A54
source: NestedKV, row A54; wording after Hsieh et al. 2024, RULER (arXiv:2404.06654)
object: Episodic
"""

import numpy as np

from assay.tasks.haystack import PREAMBLE, fact_and_others, facts_in, value_spans, weave, within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.text import corpus

_WORDS_OF_A_FACT = 10


class Episodic(Generated):
    """`episodes`: how many stretches of prose, each after a stretch of look-alikes.

    `share`: of the words that belong to look-alikes; `digits`: of the numbers.
    """

    def __init__(self, *, episodes: int = 2, share: float = 0.5, digits: int = 7):
        within("episodes", episodes, 1, 64)
        within("share", share, 0, 0.9, whole=False)
        within("digits", digits, 1, 18)
        self.episodes, self.share, self.digits, self.haystack = episodes, share, digits, corpus("english")

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        firsts = rng.choice(self.haystack.sentences, self.episodes).tolist()
        home, depth = int(rng.integers(self.episodes)), float(rng.uniform(0.25, 0.75))
        fact, *others = fact_and_others(rng, facts_in(length, count, self.digits), self.digits)

        def build(words: int) -> Example:
            prose = _shares(round(words * (1 - self.share)), self.episodes)
            alike = _shares(round(words * self.share) // _WORDS_OF_A_FACT, self.episodes)
            context, spans, at = PREAMBLE, [], 0
            for k, first in enumerate(firsts):
                context += "".join(other.sentence + "\n" for other in others[at : at + alike[k]])
                at += alike[k]
                here = [fact] if k == home else []
                text, starts = weave(self.haystack, first, prose[k], here, [depth] * len(here))
                spans += value_spans(text, starts, here, len(context))
                context += text + "\n"
            meta = {
                "key": fact.key,
                "depth": spans[0][0] / len(context),
                "look_alikes": min(at, len(others)),
                "episode": home,
            }
            return Example(context, fact.question, (f" {fact.value}",), tuple(spans), meta)

        return fill(build, length, count, guess=length // 2)


def _shares(total: int, parts: int) -> list[int]:
    return [total * (k + 1) // parts - total * k // parts for k in range(parts)]
