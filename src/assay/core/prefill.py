"""Feeding a context to a state: whole, or in pieces between which a policy may drop tokens, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.state import ModelState

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


def prefill(
    model: Transformer,
    tokens: Int[Tensor, "batch tokens"],
    state: ModelState,
    *,
    valid: Bool[Tensor, "batch tokens"] | None = None,
    chunk: int | None = None,
    held: Compression | None = None,
    context: Int[Tensor, "batch"] | None = None,
    logits: Literal["last", "none"] = "last",
) -> Float[Tensor, "batch 1 vocab"] | None:
    """Feed a context, at most `chunk` tokens at a time, and compress it under `held`, which listens to `state` already.

    Without `held` the pieces change nothing but the memory that activations take. Under a policy the whole context's
    length is known from the start, and with it the ceiling: after every piece but the last the cache is brought under it,
    so that a growing layer never holds more than ceiling + `chunk` tokens a head on average. A policy then decides by
    what it has seen so far, and what it has dropped cannot come back: other tokens may stay than after a whole prefill.
    They are the same where nothing had to go before the last piece (a budget of everything, a context within the
    ceiling or within one piece). A policy's columns of the prefill (`brief`) are kept, beside the budget, until its end.

    Pieces are counted from the end, so that a left-padded row is cut as it would be alone. `context`: see
    `Compression.finish_prefill`. Logits of the last token. Raises AssayError for a `chunk` that is no whole number.
    """
    whole("prefill", chunk=chunk)
    if held is not None and held.state is not state:
        raise AssayError("prefill: the compression listens to another state; attach it to this one")
    ends = state.seen + (tokens.shape[1] if valid is None else valid.sum(1))
    out = None
    for begin, end in pieces(tokens.shape[1], chunk):
        last = end == tokens.shape[1]
        there = None if valid is None else valid[:, begin:end]
        out, _ = model(tokens[:, begin:end], state, valid=there, logits=logits if last else "none")
        if held is not None and not last:
            held.finish_piece(ends, context=context)
    if held is not None:
        held.finish_prefill(context=context)
    return out


def pieces(tokens: int, chunk: int | None) -> Iterator[tuple[int, int]]:
    """Where each piece begins and ends: `chunk` tokens each, counted from the end; the first may be shorter."""
    size = chunk or max(tokens, 1)
    yield from ((max(0, end - size), end) for end in range((tokens - 1) % size + 1, max(tokens, 1) + 1, size))
