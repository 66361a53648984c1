"""Questions of your own: a file with one JSON object a line, as `jsonl:FILE`.

Each line holds `context`, `question` and `answers` (a list of texts, or one):

    {"context": "…", "question": "Who wrote it?", "answers": ["Ada"]}

The prompt is context and question, a line break between them where neither brings white
space; the answer follows after a space where neither brings one. Lines are taken in an order drawn by the seed, each at
most once, so fewer examples than asked for may come.

seam: task
row: -
source: -
object: JsonLines
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.task import Count, Example, Task, tokens
from assay.tasks.text import read


class JsonLines(Task):
    """`match`: whether an output must hold "all" answers (their share is the score) or "any" one of them."""

    def __init__(self, file: str, *, match: Literal["all", "any"] = "all"):
        if match not in ("all", "any"):
            raise AssayError(f"match={match!r}: all or any is needed")
        self.file, self.match = file, match
        # Not splitlines(): a JSON text may hold U+2028 and its like.
        lines = [(n, line) for n, line in enumerate(read(file).split("\n"), 1) if line.strip()]
        self.lines = [(n, _example(f"{file}, line {n}", line)) for n, line in lines]

    def examples(self, n: int, seed: int, length: int, count: Count) -> Iterator[Example]:
        """Yield at most n examples. Raises AssayError at a line whose prompt is longer than `length` tokens."""
        order = np.random.default_rng(seed).permutation(len(self.lines))
        for index, k in enumerate(order[:n]):
            line, example = self.lines[k]
            if (size := tokens(example, count)) > length:
                raise AssayError(
                    f"{self.file}, line {line}: its prompt has {size} tokens, more than the length of {length}; "
                    f"ask for a length of {size} or shorten it"
                )
            yield Example(
                example.context,
                example.question,
                example.answers,
                example.spans,
                {"seed": seed, "index": index, "line": line},
            )


def _example(place: str, line: str) -> Example:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AssayError(f"{place} is not JSON: {error}") from None
    try:
        line.encode("utf-8"), json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise AssayError(f"{place} holds half a surrogate pair, which is no text") from None
    if not isinstance(row, dict):
        raise AssayError(f"{place}: an object with context, question and answers is needed, not {type(row).__name__}")
    if missing := [name for name in ("context", "question", "answers") if name not in row]:
        raise AssayError(f"{place} lacks {' and '.join(missing)}; it has {', '.join(row) or 'nothing'}")
    answers = [row["answers"]] if isinstance(row["answers"], str) else row["answers"]
    for name in ("context", "question"):
        if not isinstance(row[name], str):
            raise AssayError(f"{place}: {name} must be text, not {type(row[name]).__name__}")
    if not _are_texts(answers):
        raise AssayError(f"{place}: answers must be a text or a list of texts that are not empty")
    if not row["context"].strip():
        raise AssayError(f"{place}: context is empty")
    context = row["context"] + _between(row["context"], row["question"], "\n")
    space = _between(context + row["question"], answers[0], " ")
    return Example(context, row["question"], (space + answers[0], *answers[1:]), _spans(row["context"], answers))


def _are_texts(answers: Any) -> bool:
    return isinstance(answers, list) and bool(answers) and all(isinstance(a, str) and a.strip() for a in answers)


def _between(left: str, right: str, space: str) -> str:
    return "" if not right or left[-1:].isspace() or right[:1].isspace() else space


def _spans(context: str, answers: list[str]) -> tuple[tuple[int, int], ...]:
    return tuple(
        sorted({m.span() for answer in answers for m in re.finditer(re.escape(answer.strip()), context, re.IGNORECASE)})
    )
