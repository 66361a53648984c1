"""A window of a text: a context and the words that truly follow it, cut at a place drawn by the seed."""

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.task import Count, Example, largest
from assay.tasks.text import Corpus


def window(corpus: Corpus, rng: np.random.Generator, length: int, continuation: int, count: Count) -> Example:
    """A context of `length` tokens and a continuation of `continuation` tokens, neither a token more.

    Raises AssayError where the text is shorter than both together, or a single word is longer than either.
    """
    total = len(corpus)

    def size(first: int, last: int) -> int:
        return count(corpus.passage(first, last - first)) if last > first else 0

    earliest = largest(lambda words: size(0, min(words, total)), length, length // 2)
    tail = largest(lambda words: size(total - min(words, total), total), continuation, continuation // 2)
    if min(earliest, tail) < 1:
        raise AssayError(
            f"{corpus.name}: a length of {length} and a continuation of {continuation} tokens cannot hold one word each"
        )
    if earliest + tail > total:
        have = size(0, total)
        raise AssayError(
            f"{corpus.name} holds {have:,} tokens, a window needs {length} + {continuation}; "
            f"take a length of at most {max(have - continuation - 1, 0)}"
        )
    # drawn over the whole text until it fits, so that a seed takes the same place at all lengths that fit before it
    cut = int(rng.integers(total - tail + 1))
    while cut < earliest:
        cut = int(rng.integers(total - tail + 1))
    while cut > earliest and corpus.inside_word(cut):
        cut -= 1
    before = largest(
        lambda words: count(corpus.passage(cut - min(words, cut), min(words, cut)).lstrip()), length, earliest
    )
    after = largest(lambda words: size(cut, min(cut + words, total)), continuation, tail)
    first = cut - min(before, cut)
    words = corpus.passage(first, cut - first).lstrip()
    answer = corpus.passage(cut, min(after, total - cut))
    meta = {"text": f"{corpus.name}:{corpus.checksum}", "words": (first, cut)}
    return Example(words, "", (answer,), (), meta)
