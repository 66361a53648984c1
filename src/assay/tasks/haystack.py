"""Facts hidden in a text: the sentences of a needle task, where they are put, and where their values then lie.

The wording is RULER's: "One of the special magic numbers for <key> is: <value>." (Hsieh et al. 2024,
arXiv:2404.06654), but for the colon that ends the question as it stands in the fact. Without it a base model begins
with the colon: Gemma 3 270M gave 3 of 10 needles exactly at 1,000 tokens without it and 10 with it, its cache whole.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.task import Count
from assay.tasks.text import Corpus
from assay.tasks.words import NOUNS, draw_keys, draw_numbers, draw_pairs

PREAMBLE = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize them. "
    "I will quiz you about the numbers afterwards.\n"
)
FILLER = "The road is long. The night is cool. A bell rings out. We walk on. Then it is day again.\n"
GRID = 40  # places of a needle from the beginning to the end, no two needles at the same (RULER)
_BREAK = re.compile(r"(?<=[.!?:])\s+(?=\S)|\n+(?=\S)")
_LINE = re.compile(r"\n+(?=\S)")  # of code: only before a line that is not indented


@dataclass(frozen=True)
class Fact:
    """One key with its value, said as one sentence."""

    key: str
    value: str

    @property
    def sentence(self) -> str:
        return f"One of the special magic numbers for {self.key} is: {self.value}."

    @property
    def value_at(self) -> int:
        return len(self.sentence) - len(self.value) - 1

    @property
    def question(self) -> str:
        return (
            f"What is the special magic number for {self.key} mentioned in the provided text? "
            f"The special magic number for {self.key} mentioned in the provided text is:"
        )


def weave(
    corpus: Corpus, first: int, words: int, facts: Sequence[Fact], depths: Sequence[float]
) -> tuple[str, list[int]]:
    """A passage of the corpus with each fact put before the sentence nearest to its depth (0 the beginning, 1 the end).

    Returns the text and, in the order of `facts`, the character at which each fact's sentence begins.
    """
    passage = corpus.passage(first, words).strip()
    breaks = [0] + [gap.end() for gap in (_LINE if corpus.code else _BREAK).finditer(passage)] + [len(passage)]
    between = "\n" if corpus.code else " "
    places = sorted(
        (min(breaks, key=lambda place: abs(place - depth * len(passage))), k) for k, depth in enumerate(depths)
    )
    parts, starts, done, at = [], [0] * len(facts), 0, 0
    for place, k in places:
        before = passage[done:place]
        if place == len(passage) and (before or at) and not (before or between)[-1].isspace():
            before += between
        sentence = facts[k].sentence + between
        starts[k] = at + len(before)
        parts += [before, sentence]
        at += len(before) + len(sentence)
        done = place
    return "".join([*parts, passage[done:]]).rstrip(), starts


def value_spans(text: str, starts: Sequence[int], facts: Sequence[Fact], offset: int = 0) -> list[tuple[int, int]]:
    """The characters of each fact's value in a woven text that begins `offset` characters into the context."""
    spans = [
        (offset + s + f.value_at, offset + s + f.value_at + len(f.value)) for s, f in zip(starts, facts, strict=True)
    ]
    assert all(text[a - offset : b - offset] == f.value for (a, b), f in zip(spans, facts, strict=True))
    return spans


def draw_facts(rng: np.random.Generator, n: int, digits: int) -> list[Fact]:
    """n facts of different keys and, while there are enough of them, different numbers."""
    return [Fact(*pair) for pair in zip(draw_keys(rng, n), draw_numbers(rng, n, digits), strict=True)]


def draw_depths(rng: np.random.Generator, n: int) -> list[float]:
    """n different depths of RULER's grid of forty, from 0 to 1."""
    return (rng.permutation(GRID)[:n] / (GRID - 1)).tolist()


def fact_and_others(rng: np.random.Generator, n: int, digits: int) -> list[Fact]:
    """The fact that is asked for, the same whatever n is, and n others that look like it: keys are pairs of nouns."""
    asked = Fact(*draw_pairs(rng, 1), *draw_numbers(rng, 1, digits))
    keys, numbers = draw_pairs(rng, n + 1), draw_numbers(rng, n + 2, digits)
    numbers = [number for number in numbers if number != asked.value] or numbers
    others = [Fact(*pair) for pair in zip(keys, numbers, strict=False) if pair[0] != asked.key]
    return [asked, *others[:n]]


def facts_in(length: int, count: Count, digits: int) -> int:
    """How many facts `length` tokens may hold at most, roughly and rather too many."""
    return min(5 * length // (4 * max(count(Fact("walnut", "8" * digits).sentence), 1)) + 8, len(NOUNS) ** 2 - 1)


def within(name: str, value: float, low: float, high: float, whole: bool = True) -> None:
    """Raises AssayError where an argument lies outside [low, high] or is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        bounds = f"of at least {low}" if high == float("inf") else f"from {low} to {high}"
        raise AssayError(f"{name}={value!r}: {kind} {bounds} is needed")
