"""Recall the value of a key from a list of pairs: associative recall over a small closed vocabulary.

Words are separated by single spaces: `k17 v03 . f2 k04 v21 . …`, fillers among the pairs, then the queries, as in
`? k04 v21 ? k17`, the last of which is to be answered. Made for small models with one token a word; any other tokenizer
reads it too. `batch` gives whole arrays to train on.

seam: task
row: -
source: Arora et al. 2023, Zoology (arXiv:2312.04927), multi-query associative recall
object: Recall
aliases: mqar
"""

import functools

import numpy as np
from jaxtyping import Bool, Int

from assay.core.errors import AssayError
from assay.tasks.closed import decode, numbered
from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill


class Recall(Generated):
    """`pairs`: how many stand in a context (0: as many as fit); `queries`: how many are asked.

    All queries but the last come with their answers. Every key of a context is used once, values are drawn with
    replacement. `keys`, `values`, `fillers`: sizes of the vocabulary.
    """

    def __init__(self, *, keys: int = 64, values: int = 64, pairs: int = 0, queries: int = 1, fillers: int = 8):
        sizes = {"keys": keys, "values": values, "pairs": pairs, "queries": queries, "fillers": fillers}
        for name, number in sizes.items():
            within(name, number, {"pairs": 0, "values": 2}.get(name, 1), 10_000)
        if max(pairs, queries) > keys or (pairs and queries > pairs):
            raise AssayError(f"keys={keys}, pairs={pairs}, queries={queries}: no more queries than pairs than keys")
        self.keys, self.values, self.pairs, self.queries, self.fillers = keys, values, pairs, queries, fillers

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """All words; the ids of `batch` are places in this list."""
        return [".", "?", *numbered("k", self.keys), *numbered("v", self.values), *numbered("f", self.fillers)]

    def batch(
        self, rows: int, length: int, seed: int
    ) -> tuple[Int[np.ndarray, "rows tokens"], Bool[np.ndarray, "rows tokens"]]:
        """`rows` sequences of exactly `length` words, the last answer included, and which of the words answer a query.

        Raises AssayError where they are too short for one pair a query.
        """
        asking = 3 * self.queries
        room = length - asking
        pairs = min(self.pairs or self.keys, room // 3)
        if pairs < max(self.pairs, self.queries):
            raise AssayError(
                f"{length} words are too few for {max(self.pairs, self.queries)} pairs and {self.queries} queries"
            )
        rng = np.random.default_rng([seed, 1])
        key = 2 + rng.permuted(np.tile(np.arange(self.keys), (rows, 1)), axis=1)[:, :pairs]
        value = 2 + self.keys + rng.integers(self.values, size=(rows, pairs))
        ids = np.empty((rows, length), dtype=np.int64)
        ids[:, :room] = self._context(rng, key, value, room)
        ids[:, room::3] = self.vocabulary.index("?")
        ids[:, room + 1 :: 3], ids[:, room + 2 :: 3] = key[:, : self.queries], value[:, : self.queries]
        asked = np.zeros((rows, length), dtype=bool)
        asked[:, room + 2 :: 3] = True
        return ids, asked

    def _context(
        self, rng: np.random.Generator, key: np.ndarray, value: np.ndarray, room: int
    ) -> Int[np.ndarray, "rows room"]:
        rows, pairs = key.shape
        items = pairs + room - 3 * pairs
        order = rng.permuted(np.tile(np.arange(items), (rows, 1)), axis=1)
        widths = np.where(order < pairs, 3, 1)
        starts = np.empty_like(order)
        np.put_along_axis(starts, order, np.cumsum(widths, axis=1) - widths, axis=1)
        starts = starts[:, :pairs]
        ids = 2 + self.keys + self.values + rng.integers(self.fillers, size=(rows, room))
        for offset, words in enumerate((key, value, np.zeros_like(key))):
            np.put_along_axis(ids, starts + offset, words, axis=1)
        return ids

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        seed = int(rng.integers(2**62))
        least = 3 * max(self.pairs, self.queries) + 3 * self.queries

        def build(more: int) -> Example:
            ids = self.batch(1, least + more, seed)[0][0]
            room = len(ids) - 3 * self.queries
            context, starts = decode(self.vocabulary, ids[:room])
            question, _ = decode(self.vocabulary, ids[room:-1])
            answer = self.vocabulary[ids[-1]]
            at = int(np.flatnonzero(ids[:room] == ids[-2])[0]) + 1
            span = (starts[at], starts[at] + len(answer))
            meta = {"key": self.vocabulary[ids[-2]], "pairs": int((ids[:room] == 0).sum()), "words": len(ids)}
            return Example(context, " " + question, (f" {answer}",), (span,), meta)

        return fill(build, length, count, guess=max(length - least, 1))
