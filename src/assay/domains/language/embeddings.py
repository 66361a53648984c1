"""Texts as vectors: a model's hidden states pooled over each text's tokens (Reimers and Gurevych 2019, arXiv:1908.10084)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.transformer import Transformer


@torch.no_grad()
def embed(
    model: Transformer,
    texts: Sequence[str],
    *,
    pooling: str = "mean",
    normalize: bool = True,
    batch: int = 32,
    longest: int | None = None,
) -> Float[Tensor, "texts width"]:
    """One vector a text, in the order of `texts`; of length 1 if `normalize`, so that products are cosines.

    `pooling`: mean of the final hidden states over the text's tokens (special ones such as [CLS] among them), or the state of its
    first or last token. Texts of like length are computed `batch` at a time; which ones share a batch leaves no trace. `longest`:
    longer texts are cut to so many tokens. Raises AssayError for a text that is longer than the model's context, or has no token.
    """
    if isinstance(texts, str):
        raise AssayError("embed takes a list of texts; put the one text into a list")
    if pooling not in _POOLINGS:
        raise AssayError(f"pooling {pooling!r} is unknown; there are {', '.join(_POOLINGS)}")
    if batch < 1:
        raise AssayError(f"batch={batch}: give at least 1")
    rows = _rows(model, texts, longest)
    vectors = torch.zeros(len(rows), model.config.width, device=model.device)
    for chosen in _batches(rows, batch):
        tokens, valid = _padded([rows[index] for index in chosen], model.device)
        hidden = model.final_norm(model.hidden(tokens, valid=valid))
        pooled = _POOLINGS[pooling](hidden, valid)
        vectors = vectors.to(pooled.dtype).index_copy(0, torch.tensor(chosen, device=model.device), pooled)
    return F.normalize(vectors, dim=-1) if normalize else vectors


def _mean(hidden: Float[Tensor, "batch tokens width"], valid: Bool[Tensor, "batch tokens"]) -> Tensor:
    return torch.where(valid[..., None], hidden, 0).sum(1) / valid.sum(1, keepdim=True)


def _first(hidden: Float[Tensor, "batch tokens width"], valid: Bool[Tensor, "batch tokens"]) -> Tensor:
    return hidden[:, 0]


def _last(hidden: Float[Tensor, "batch tokens width"], valid: Bool[Tensor, "batch tokens"]) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), valid.sum(1) - 1]


_POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mean": _mean, "first": _first, "last": _last}


def _rows(model: Transformer, texts: Sequence[str], longest: int | None) -> list[list[int]]:
    if model.tokenizer is None:
        raise AssayError(f"{model.name} has no tokenizer, so it reads no texts")
    close = getattr(model.tokenizer, "sep", None)
    tail = [] if close is None else [close]
    if longest is not None and longest <= len(tail):
        raise AssayError(f"longest={longest}: give at least {len(tail) + 1} tokens")
    rows = []
    for number, text in enumerate(texts):
        row = model.tokenizer.encode(text)
        if longest is not None and len(row) > longest:
            row = row[: longest - len(tail)] + tail
        if len(row) > model.config.context:
            context = model.config.context
            raise AssayError(
                f"text {number} has {len(row)} tokens, {model.name} reads {context}; longest={context} cuts it"
            )
        if not row:
            raise AssayError(f"text {number} has no token")
        rows.append(row)
    return rows


def _batches(rows: list[list[int]], size: int) -> Iterator[list[int]]:
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    return (order[start : start + size] for start in range(0, len(order), size))


def _padded(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Bool[Tensor, "batch tokens"]]:
    length = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (length - len(row)) for row in rows], device=device)
    valid = torch.tensor([[at < len(row) for at in range(length)] for row in rows], device=device)
    return tokens, valid
