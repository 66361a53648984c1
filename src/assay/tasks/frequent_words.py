"""Name the three coded words that a text holds most often.

RULER's `fwe`: words of six random letters, the one of rank k as often as k^-alpha of a zeta distribution says; the most
frequent of all is noise, written as dots, and the three after it are asked for. Nothing but counts tells them apart.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654), frequent words extraction
object: FrequentWords
aliases: fwe
"""

import string

import numpy as np
from jaxtyping import Int
from scipy.special import zeta

from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill, room_for

_ASKED = 3
_LETTERS = 6
_NOISE = "..."
_PREAMBLE = "The text below is in code. Keep count of how often each of its words comes; dots are no words.\n"
_QUESTION = (
    "\nQuestion: Which three words come most often in the coded text above? Leave the dots out. "
    "Answer: The three words that come most often in it are:"
)


class FrequentWords(Generated):
    """`alpha`: how steeply the frequencies fall."""

    any_order = True

    def __init__(self, *, alpha: float = 2.0):
        within("alpha", alpha, 1.1, 10, whole=False)
        self.alpha = alpha

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        ranks = max(length // 50, _ASKED + 2)
        seed = int(rng.integers(2**62))  # before the words, of which a longer text has more
        words = _coded(rng, ranks)
        asked = words[1 : 1 + _ASKED]
        third, fourth = counts_of(1_000_000, ranks, self.alpha)[_ASKED : _ASKED + 2].tolist()
        least = 2_000_000 // max(
            third - fourth, 1
        )  # so many words that the third asked for comes oftener than the next

        def build(more: int) -> Example:
            counts = counts_of(least + more, ranks, self.alpha)
            text, places = _shuffled(seed, words, counts)
            spans = tuple(
                (len(_PREAMBLE) + at, len(_PREAMBLE) + at + _LETTERS) for at, rank in places if 1 <= rank <= _ASKED
            )
            meta = {"alpha": self.alpha, "counts": counts[counts > 0].tolist(), "max_tokens": room_for(asked, count)}
            return Example(_PREAMBLE + text, _QUESTION, (f" {asked[0]}", *asked[1:]), spans, meta)

        return fill(build, length, count, guess=length // 3)


def counts_of(words: int, ranks: int, alpha: float) -> Int[np.ndarray, "ranks"]:
    """How often the word of each rank comes in a text of `words` words, rounded down as RULER does."""
    return (words * np.arange(1, ranks + 1) ** -float(alpha) / zeta(alpha)).astype(int)


def _coded(rng: np.random.Generator, n: int) -> list[str]:
    """Noise and n - 1 different words of random letters."""
    found: dict[str, None] = {_NOISE: None}
    while len(found) < n:
        found["".join(rng.choice(list(string.ascii_lowercase), _LETTERS))] = None
    return list(found)


def _shuffled(seed: int, words: list[str], counts: np.ndarray) -> tuple[str, list[tuple[int, int]]]:
    """Every word as often as it comes, in random order, and where each copy stands with its rank.

    Every copy has a place drawn for itself, so that a longer text holds a shorter one's copies in the same order.
    """
    present = np.flatnonzero(counts)
    keys = np.concatenate([np.random.default_rng([seed, rank]).random(counts[rank]) for rank in present])
    ranks = np.repeat(present, counts[present])[np.argsort(keys, kind="stable")].tolist()
    starts = np.cumsum([0] + [len(words[rank]) + 1 for rank in ranks])[:-1].tolist()
    return " ".join(words[rank] for rank in ranks), list(zip(starts, ranks, strict=True))
