"""Name the ten words that a numbered list holds most often.

RULER's `cwe`: ten common words thirty times each and the others three times each, or six times and once below 4,096
tokens; the longer the list, the more others. A worked example of forty items comes first (ten times and three times, or
three times and once). Every copy of a common word counts, so a policy that drops look-alikes is expected to lose.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654), common words extraction
object: CommonWords
aliases: cwe
"""

import functools

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill, room_for
from assay.tasks.words import vocabulary

_LONG = 4096
_SHOWN_MOST = 30  # other words in the worked example
_PREAMBLE = "Here is a numbered list of words. Some of them come more often than the rest; remember those.\n"


class CommonWords(Generated):
    """`words`: how many are common. `often`, `rarely`: how often a common word and another one come, 0 for RULER's rule.

    `shots`: 1 for the worked example, 0 for none.
    """

    any_order = True

    def __init__(self, *, words: int = 10, often: int = 0, rarely: int = 0, shots: int = 1):
        within("words", words, 1, 100)
        within("often", often, 0, 10_000)
        within("rarely", rarely, 0, 10_000)
        within("shots", shots, 0, 1)
        if 0 < often <= rarely:
            raise AssayError(f"often={often}, rarely={rarely}: common words must come more often than the others")
        self.words, self.often, self.rarely, self.shots = words, often, rarely, shots

    @functools.cached_property
    def question(self) -> str:
        return (
            f"Question: Which {self.words} words come most often in the list above? "
            f"Answer: The {self.words} words that come most often are: 1."
        )

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        often, rarely = (30, 3) if length >= _LONG else (6, 1)
        often, rarely = self.often or often, self.rarely or rarely
        said = (_PREAMBLE + self.question).lower()
        drawn = rng.permutation([word for word in vocabulary() if word not in said]).tolist()
        cut = 2 * self.words + _SHOWN_MOST
        common, shown, others = drawn[: self.words], drawn[self.words : cut], drawn[cut:]
        seed = int(rng.integers(2**62))
        before = self._worked(seed, shown, length) if self.shots else ""

        def build(more: int) -> Example:
            text, places = _list(seed, common, others[:more], often, rarely)
            head = before + _PREAMBLE
            spans = tuple((len(head) + start, len(head) + start + len(word)) for start, word in places)
            meta = {"often": often, "rarely": rarely, "others": min(more, len(others))}
            meta["max_tokens"] = room_for([f"{k}. {word}" for k, word in enumerate(common, 1)], count)
            return Example(head + text + "\n", self.question, (f" {common[0]}", *common[1:]), spans, meta)

        return fill(build, length, count, guess=max(length // 8, 1))

    def _worked(self, seed: int, shown: list[str], length: int) -> str:
        often, rarely, others = (10, 3, _SHOWN_MOST) if length >= _LONG else (3, 1, 10)
        common, rest = shown[: self.words], shown[self.words : self.words + others]
        text, _ = _list(seed + 1, common, rest, often, rarely)
        numbered = " ".join(f"{k}. {word}" for k, word in enumerate(common, 1))
        return f"{_PREAMBLE}{text}\n{self.question.removesuffix(' 1.')} {numbered}\n"


def _list(
    seed: int, common: list[str], others: list[str], often: int, rarely: int
) -> tuple[str, list[tuple[int, str]]]:
    """The numbered list, and where its common words stand.

    Every copy has a place drawn for itself, so that a longer list holds a shorter one's copies in the same order.
    """
    words = [word for word in common for _ in range(often)] + [word for word in others for _ in range(rarely)]
    order = np.argsort(np.random.default_rng(seed).random(len(words)), kind="stable").tolist()
    text, places, wanted = [], [], often * len(common)
    at = 0
    for number, k in enumerate(order, 1):
        item = f"{number}. {words[k]}"
        if k < wanted:
            places.append((at + len(item) - len(words[k]), words[k]))
        text.append(item)
        at += len(item) + 1
    return " ".join(text), places
