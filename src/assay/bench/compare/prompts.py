"""An example as tokens: what is prefilled and compressed, what is read after that, and what should follow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from assay.core.errors import AssayError
from assay.tasks import Example


@dataclass(frozen=True)
class Prompt:
    """Token ids. `context` is compressed (of a generation task, while its part after `prompted` is fed step by step);

    `question`, at least one token, is read from the compressed cache; `answer` is what should follow. `spans`: the answer's
    copies in the context, as (first, past last) token positions. `digest` names all ids.
    """

    context: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    prompted: int
    digest: str
    example: Example

    def __len__(self) -> int:
        return len(self.context) + len(self.question) + len(self.answer)


def tokenise(tokenizer: Any, example: Example, *, metric: str, aware: bool = False) -> Prompt:
    """Cut the whole text into tokens at once, as the model would read it, then into context, question and answer.

    A token that reaches over the border belongs to the later part, so that nothing of the question is ever compressed
    unless `aware`, which moves the question but its last token into the context.
    """
    if not example.answers or not example.answers[0]:
        raise AssayError("an example has no answer to score")
    text = example.context + example.question
    ids, places = tokenizer.spans(text + example.answers[0])
    context_end = _first_after(places, len(example.context))
    question_end = _first_after(places, len(text))
    question_end = min(max(question_end, context_end), len(ids) - 1)
    if aware or question_end == context_end:  # without a question the context's last token takes its place
        context_end = question_end - 1
    if context_end < 1:
        raise AssayError("an example has no context: there is nothing to compress")
    prompted = context_end
    if metric == "generation":
        prompted = max(1, min(_first_after(places, example.meta["prompt"]), context_end))
    spans = tuple(
        (min(inside), max(inside) + 1)
        for start, end in example.spans
        if (inside := [i for i, (a, b) in enumerate(places[:context_end]) if a < end and b > start])
    )
    parts = (tuple(ids[:context_end]), tuple(ids[context_end:question_end]), tuple(ids[question_end:]))
    digest = hashlib.sha256(repr((parts, prompted)).encode()).hexdigest()[:16]
    return Prompt(*parts, spans=spans, prompted=prompted, digest=digest, example=example)


def _first_after(places: list[tuple[int, int]], end: int) -> int:
    """The first token that reaches past this character."""
    return next((i for i, (_, b) in enumerate(places) if b > end), len(places))
