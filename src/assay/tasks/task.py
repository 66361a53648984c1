"""What every task gives: examples made from a seed, where their answers lie, and a score for an output."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.scorers import string_match_all, string_match_part

Count = Callable[[str], int]


@dataclass(frozen=True)
class Example:
    """One prompt, `context + question`, and what should follow it.

    `answers[0]` is the text that follows the prompt exactly, leading space included; matching ignores the space around
    an answer. `spans` are the (start, end) characters of the context that state an answer: all copies, in order; empty
    where the context states none. `meta` always holds `seed` and `index`; a task of metric "generation" adds `prompt`,
    the characters of the context that are the prompt: the rest of the context stands for what the model generated.
    `max_tokens` is how many tokens a written answer may have. `turns`: further questions, asked one after another of the
    same cache; the first answer answers `question`, the next one the first of these, and so on.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    spans: tuple[tuple[int, int], ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)


class Task(ABC):
    """A source of examples.

    `metric` says what a comparison reads: the answer, the continuation's likelihood, or the answer after a long
    generation.
    """

    metric: ClassVar[Literal["answer", "nll", "generation"]] = "answer"
    any_order: ClassVar[bool] = False  # several answers, in whatever order: what the model writes is scored
    match: Literal["all", "any"] = "all"

    @abstractmethod
    def examples(self, n: int, seed: int, length: int, count: Count) -> Iterator[Example]:
        """Yield n examples whose prompts have at most `length` tokens, as `count` counts them.

        The first m of n examples are those that m alone would give. Raises AssayError where `length` is too short for
        the task.
        """

    def score(self, example: Example, output: str) -> float:
        """Share of the answers that the output contains, or whether it contains one of them (`match`); in [0, 1]."""
        answers = [answer.strip() for answer in example.answers]
        return string_match_all(output, answers) if self.match == "all" else string_match_part(output, answers)


class Generated(Task):
    """A task whose examples are each drawn on their own, from (task, seed, index).

    So the same seed gives the same facts at every length and budget, and comparisons pair up.
    """

    def examples(self, n: int, seed: int, length: int, count: Count) -> Iterator[Example]:
        name = zlib.crc32(type(self).__name__.encode())
        for index in range(n):
            rng = np.random.default_rng([name, seed, index])
            example = self.example(rng, length, count)
            example.meta.update(seed=seed, index=index)
            yield example

    @abstractmethod
    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        """One example of at most `length` tokens, drawn from `rng` alone."""


def tokens(example: Example, count: Count) -> int:
    """Tokens of the prompt: read in one piece or as context and question apart, whichever is more."""
    together = count(example.context + example.question)
    return max(together, count(example.context) + count(example.question)) if example.question else together


def room_for(answers: Sequence[str], count: Count) -> int:
    """Tokens that an output may take to name all answers: twice what they need, and some."""
    return 8 + 2 * count(" ".join(answers))


def fill(build: Callable[[int], Example], length: int, count: Count, guess: int) -> Example:
    """The largest of the examples build(0), build(1), … that has at most `length` tokens.

    `guess` is where the search starts.
    """
    made: dict[int, Example] = {}

    def size(n: int) -> int:
        made[n] = build(n)
        return tokens(made[n], count)

    least = size(0)
    if least > length:
        raise AssayError(f"a length of {length} tokens is too short for this task: its shortest prompt has {least}")
    return made[largest(size, length, guess, least)]


def largest(size: Callable[[int], int], limit: int, guess: int, least: int | None = None) -> int:
    """The largest n with size(n) <= limit, for a size that grows with n; -1 where there is none.

    For a size that only nearly grows it is some n close by that fits. `least` is size(0) where it is known. Few calls:
    by interpolation, with a bisection in between so that it always ends soon.
    """
    low, low_size = 0, size(0) if least is None else least
    if low_size > limit:
        return -1
    first, high, high_size, step = low_size, None, 0, 0
    n = max(1, guess)
    while (high is None or high - low > 1) and low_size < limit and low < 64 * (limit + 1):
        n_size = size(n)
        if n_size <= limit:
            low, low_size = n, n_size
        else:
            high, high_size = n, n_size
        step += 1
        if high is None:
            rate = max(low_size - first, 1) / low
            n = low + max(1, min(2 * low, round((limit - low_size) / rate) + 1))
        elif step % 3 == 0:
            n = (low + high) // 2
        else:
            n = low + round((high - low) * (limit - low_size) / (high_size - low_size))
        if high is not None:
            n = min(max(n, low + 1), high - 1)
    return low
