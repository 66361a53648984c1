"""What a cell leaves to look at: which of the context's tokens are held, over its text, and where the answer was lost."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.bench.compare.prompts import Prompt
from assay.core.store import Store

BINS = 512  # of the picture of kept positions
AROUND = 20  # tokens shown on either side of an answer that was lost
PASSAGES = 3  # copies of an answer that are shown


def held_matrix(store: Store, tokens: int) -> Float[Tensor, "owners tokens"]:
    """1 where an owner holds a position of the context, else 0."""
    flat = store.flat()
    inside = flat.positions < tokens
    held = torch.zeros(store.owners, tokens, device=flat.positions.device)
    held[flat.owner[inside].long(), flat.positions[inside].long()] = 1
    return held


def binned(shares: Float[Tensor, "tokens"], bins: int = BINS) -> list[float]:
    """Means of equally wide bins, at most `bins` of them; the last one may be narrower."""
    width = -(-len(shares) // bins)
    return [round(float(part.mean()), 3) for part in shares.split(width)]


def shades(shares: Float[Tensor, "tokens"]) -> str:
    """One digit a token: 0 where no head holds it, 9 where all do, between them 1 to 8 by the share that does."""
    between = (shares * 8).ceil().clamp(1, 8)
    digits = torch.where(shares <= 0, 0, torch.where(shares >= 1 - 1e-6, 9, between))
    return "".join(map(str, digits.int().tolist()))


def pieces(tokenizer: Any, prompt: Prompt, first: int = 0, past: int | None = None) -> list[str]:
    """The text of the context's tokens from `first` on; joined they are the text, what lies between tokens included."""
    example = prompt.example
    text = example.context + example.question + example.answers[0]
    _, places = tokenizer.spans(text)
    ends = [0]
    for _, end in places[: len(prompt.context) if past is None else past]:
        ends.append(max(end, ends[-1]))
    return [text[a:b] for a, b in zip(ends[first:], ends[first + 1 :], strict=False)]


def passages(tokenizer: Any, prompt: Prompt, shares: Float[Tensor, "tokens"]) -> list[dict[str, Any]]:
    """Where the answer stands in the context, token by token with its shade: what was kept of it and what was not."""
    found = []
    for start, end in prompt.spans[:PASSAGES]:
        first, past = max(0, start - AROUND), min(len(shares), end + AROUND)
        text = pieces(tokenizer, prompt, first, past)
        found.append({"first": first, "answer": [start, end], "pieces": text, "shades": shades(shares[first:past])})
    return found
