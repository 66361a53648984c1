"""Texts over a small closed vocabulary, one word a token, words separated by single spaces."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


def numbered(letter: str, n: int) -> list[str]:
    """`k00`, `k01`, …: all of one width, so that no word is part of another."""
    width = len(str(n - 1))
    return [f"{letter}{k:0{width}d}" for k in range(n)]


def decode(vocabulary: Sequence[str], ids: Int[np.ndarray, "words"]) -> tuple[str, list[int]]:
    """The text of some ids and the character at which each word begins."""
    words = [vocabulary[k] for k in ids]
    starts = np.cumsum([0] + [len(word) + 1 for word in words])[:-1]
    return " ".join(words), starts.tolist()
