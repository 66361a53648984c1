"""What was not asked for is chosen to fit the model: how long a context it can read, and which tasks it has words for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from assay.bench.compare.settings import Settings
from assay.core.errors import AssayError
from assay.tasks import resolve

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

LENGTH = 1024
TASKS = (("needle", "multikey", "ppl"), ("recall",), ("restated",))  # in real text; in the closed vocabularies of small models


def fitting(model: Transformer, settings: Settings) -> Settings:
    """The settings with length and tasks filled in. Raises AssayError where no task fits the model's vocabulary."""
    length = settings.length or (min(LENGTH, model.config.context // 2),)
    tasks = settings.tasks or next((names for names in TASKS if _readable(model, names[0], length[0])), ())
    if not tasks:
        raise AssayError(
            f"none of the usual tasks can be read by {model.name} at {length[0]} tokens: name one with tasks"
        )
    return replace(settings, length=length, tasks=tasks)


def _readable(model: Transformer, task: str, length: int) -> bool:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise AssayError(f"model {model.name} has no tokenizer, so tasks of text cannot be read")
    try:
        return any(resolve(task).examples(1, 0, length, lambda text: len(tokenizer.encode(text))))
    except AssayError:  # a word that the model does not have
        return False
