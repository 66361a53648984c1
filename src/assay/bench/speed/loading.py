"""Seconds until a model gives its first logits: when it is loaded for the first time, and later."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from assay import checkpoints
from assay.bench.speed.timing import seconds
from assay.checkpoints import catalogue
from assay.core.transformer import Transformer

Load = Callable[[str], Transformer]


def timed(
    name: str, folder: Path, source: Callable[[Path], Path] | None
) -> tuple[dict[str, float | None], Load, str | None]:
    """First and later load in float32, a function that loads in any storage, and a note.

    A GGUF file is loaded through an empty cache in `folder`, so that its conversion is measured and the user's own cache is left
    alone. `source` makes the model's folder instead of finding it by name.
    """
    if source is not None:
        where = str(source(folder / "source"))
        return {"first": None, "later": _until_logits(lambda: checkpoints.load(where))}, _loader(where), None
    if not (name.endswith(".gguf") or catalogue.bundled(name)):
        _until_logits(lambda: checkpoints.load(name))
        later = _until_logits(lambda: checkpoints.load(name))
        return (
            {"first": None, "later": later},
            _loader(name),
            "first load: only a GGUF file is converted, others load as later",
        )
    cache = folder / "cache"
    with _cache_in(cache):
        first = _until_logits(lambda: checkpoints.load(name))
        later = _until_logits(lambda: checkpoints.load(name))

    def load(storage: str) -> Transformer:
        with _cache_in(cache):
            return checkpoints.load(name, dtype=storage)

    return {"first": first, "later": later}, load, None


def _loader(name: str) -> Load:
    return lambda storage: checkpoints.load(name, dtype=storage)


def _until_logits(load: Callable[[], Transformer]) -> float:
    @torch.no_grad()
    def ready() -> None:
        load()(torch.tensor([[1]]), logits="last")

    return seconds(ready)


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("ASSAY_CACHE")
    os.environ["ASSAY_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["ASSAY_CACHE"]
        else:
            os.environ["ASSAY_CACHE"] = before
