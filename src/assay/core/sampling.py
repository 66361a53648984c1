"""Choosing the next token: greedy, or drawn from a tempered and truncated distribution."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def truncate(
    logits: Float[Tensor, "batch vocab"], *, top_k: int, top_p: float, min_p: float
) -> Float[Tensor, "batch vocab"]:
    """Logits with everything outside the truncation at -inf; the most likely token always stays.

    top_k: the k most likely (0: all); top_p: the smallest set with that much probability; min_p: those with at least that
    share of the most likely one's probability.
    """
    if top_k:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p < 1:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        outside = (before >= top_p).scatter(1, order, before >= top_p)
        outside.scatter_(1, order[:, :1], False)
        logits = logits.masked_fill(outside, -torch.inf)
    if min_p > 0:
        probability = logits.softmax(-1)
        logits = logits.masked_fill(probability < min_p * probability.amax(-1, keepdim=True), -torch.inf)
    return logits


def choose(
    logits: Float[Tensor, "batch vocab"],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    generator: torch.Generator,
) -> Int[Tensor, "batch"]:
    """The next token of each sequence; temperature 0 is greedy."""
    if temperature == 0:
        return logits.argmax(-1)
    kept = truncate(logits.float() / temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return torch.multinomial(kept.softmax(-1), 1, generator=generator)[:, 0]
