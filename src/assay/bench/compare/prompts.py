"""An example as tokens: what is prefilled and compressed, what is read after that, and what should follow."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from assay.core.errors import AssayError
from assay.tasks import Example


@dataclass(frozen=True)
class Prompt:
    """Token ids. `context` is compressed (of a generation task, while its part after `prompted` is fed step by step);

    `question`, at least one token, is read from the compressed cache; `answer` is what should follow. `spans`: the answer's
    copies in the context, as (first, past last) token positions, and `states`: which answer each of them states.
    `turns`: further questions, read one after another from the same cache. `digest` names all ids.
    """

    context: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    prompted: int
    digest: str
    example: Example
    states: tuple[int, ...] = ()
    turns: tuple[Prompt, ...] = ()

    def __len__(self) -> int:
        return len(self.context) + len(self.question) + len(self.answer) + sum(map(len, self.turns))

    def copies(self, any_of: bool) -> list[list[tuple[int, int]]]:
        """The spans of each answer; of all answers together where `any_of` them is enough."""
        if any_of or not self.spans:
            return [list(self.spans)] if self.spans else []
        return [
            [span for span, which in zip(self.spans, self.states, strict=True) if which == k]
            for k in sorted(set(self.states))
        ]


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
    stated: dict[str, int] = {}
    spans, states = [], []
    for start, end in example.spans:
        if inside := [i for i, (a, b) in enumerate(places[:context_end]) if a < end and b > start]:
            spans.append((min(inside), max(inside) + 1))
            states.append(stated.setdefault(example.context[start:end].lower(), len(stated)))
    parts = (tuple(ids[:context_end]), tuple(ids[context_end:question_end]), tuple(ids[question_end:]))
    turns = _turns(tokenizer, example)
    said = (parts, prompted, *[(turn.question, turn.answer) for turn in turns])
    digest = hashlib.sha256(repr(said).encode()).hexdigest()[:16]
    return Prompt(
        *parts, spans=tuple(spans), prompted=prompted, digest=digest, example=example, states=tuple(states), turns=turns
    )


def _turns(tokenizer: Any, example: Example) -> tuple[Prompt, ...]:
    """The questions after the first, each with the last token of the answer before it, which no turn has read yet."""
    found, before = [], example.answers[0]
    for question, answer in zip(example.meta.get("turns", ()), example.answers[1:], strict=False):
        ids, places = tokenizer.spans(before + question + answer, bos=False)
        border = _first_after(places, len(before))
        start = border if places[border][0] < len(before) else border - 1  # a token over the border is read here
        end = max(_first_after(places, len(before) + len(question)), start + 1)
        asked = replace(example, question=question, answers=(answer,))
        found.append(
            Prompt((), tuple(ids[start:end]), tuple(ids[end:]), spans=(), prompted=0, digest="", example=asked)
        )
        before = answer
    return tuple(found)


def _first_after(places: list[tuple[int, int]], end: int) -> int:
    """The first token that reaches past this character."""
    return next((i for i, (_, b) in enumerate(places) if b > end), len(places))
