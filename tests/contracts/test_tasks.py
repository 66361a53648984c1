"""Seam 11: what every task owes, held against every task that the registry knows."""

import inspect
import json
import re
import socket
import time
from collections import Counter

import pytest
from tests.contracts.under_test import parts

from assay.core import registry
from assay.core.errors import AssayError
from assay.tasks import Example, resolve
from assay.tasks.text import english

CARDS = parts("task")
COUNTS = {
    "words": lambda text: len(text.split()),
    "quarters": lambda text: -(-len(text) // 4),
    "pieces": lambda text: 1 + len(re.findall(r" ?[A-Za-z]{1,6}|\d|\s|[^\w\s]", text)),
    "characters": len,
}
LENGTHS = {"words": 600, "quarters": 1024, "pieces": 1024, "characters": 3000}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file for each task that reads one, by its name."""
    folder = tmp_path_factory.mktemp("files")
    text, lines = folder / "own.txt", folder / "own.jsonl"
    text.write_text(english().passage(0, 9000), encoding="utf-8")
    rows = [
        {"context": f"Row {k} holds {k * k}.", "question": f"What does row {k} hold?", "answers": [str(k * k)]}
        for k in range(90)
    ]
    lines.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return {"text": text, "jsonl": lines}


@pytest.fixture(params=CARDS, ids=lambda card: card.name)
def task(request, files):
    name = request.param.name
    needs_file = "file" in inspect.signature(registry.load(request.param)).parameters
    return resolve(f"{name}:{files[name]}" if needs_file else name)


def generated(task) -> bool:
    return not hasattr(task, "file")


def made(task, n=4, seed=0, count="pieces", length=None) -> list[Example]:
    return list(task.examples(n, seed, length or LENGTHS[count], COUNTS[count]))


def test_every_task_of_the_issues_is_known():
    wanted = {"needle", "multikey", "ppl", "restated", "recall", "text", "jsonl", "episodic", "duplicated", "fewshot"}
    wanted |= {"multi_value", "multi_query", "variable_tracking", "common_words", "frequent_words", "passkey"}
    wanted |= {"documents", "code_completion", "multi_turn"}
    assert wanted <= {card.name for card in CARDS}


def test_same_seed_same_examples_and_other_seeds_others(task):
    first = made(task)
    assert first == made(task)
    assert len({example.context + example.question for example in first}) == len(first) == 4
    other = made(task, seed=1)
    assert all(a.context + a.question != b.context + b.question for a, b in zip(first, other, strict=True))


def test_more_examples_begin_with_fewer(task):
    assert made(task, n=2) == made(task, n=5)[:2]


@pytest.mark.parametrize("count", COUNTS)
def test_length_is_honoured_and_never_exceeded(task, count):
    for example in made(task, count=count):
        measure, length = COUNTS[count], LENGTHS[count]
        size = measure(example.context + example.question)
        apart = measure(example.context) + (measure(example.question) if example.question else 0)
        assert size <= length and apart <= length  # a context may be read on its own, before the question is seen
        if generated(task):
            assert size >= length - max(24, 0.05 * length)


def test_spans_hold_the_answers(task):
    for example in made(task):
        answers = {answer.strip().lower() for answer in example.answers}
        assert all(example.context[start:end].lower() in answers for start, end in example.spans)
        assert list(example.spans) == sorted(example.spans)
        assert example.spans or task.metric == "nll"
        stated = {m.start() for a in answers for m in re.finditer(re.escape(a), example.context.lower())}
        assert task.metric == "nll" or {start for start, _ in example.spans} <= stated


def test_answers_follow_the_prompt_as_text_does(task):
    for example in made(task):
        prompt = example.context + example.question
        assert example.answers[0].strip()
        assert prompt[-1].isspace() or example.answers[0][0].isspace()
        assert not (example.question or example.context)[-1].isspace()


def test_the_right_answer_scores_one_and_another_none(task):
    for example in made(task):
        assert task.score(example, " ".join(example.answers).upper() + ".") == 1
        assert task.score(example, "It is said: " + ", ".join(example.answers)) == 1
        assert task.score(example, "quite unrelated") == 0
        assert task.score(example, "") == 0


def test_each_of_several_answers_counts_for_its_share_in_any_order(task):
    for example in made(task):
        answers = [answer.strip() for answer in example.answers]
        if len(set(answers)) > 1 and task.match == "all":
            assert task.score(example, "; ".join(reversed(answers))) == 1
            fewer = [a for a in answers[1:] if answers[0].lower() not in a.lower()]
            assert task.score(example, "; ".join(fewer)) == pytest.approx(len(fewer) / len(answers))
        if task.any_order:
            assert example.meta["max_tokens"] >= COUNTS["pieces"](" ".join(answers))
        assert len(example.meta.get("turns", ())) in (0, len(answers) - 1)


def test_the_question_alone_does_not_tell_the_answer(task):
    examples = made(task, n=60) if generated(task) else made(task)
    if task.metric == "nll":
        assert not any(example.question for example in examples)
        return
    for example in examples:
        asked = [example.question, *example.meta.get("turns", ())]
        assert not any(answer.strip().lower() in text.lower() for answer in example.answers for text in asked)
    if generated(task):  # always saying the same is right no oftener than among a few choices
        assert Counter(example.answers for example in examples).most_common(1)[0][1] <= 0.4 * len(examples)


def test_the_same_seed_asks_the_same_at_every_length(task):
    short, long = (made(task, n=12, length=length) for length in (1024, 2000))
    same = [a.question == b.question and a.answers == b.answers for a, b in zip(short, long, strict=True)]
    assert sum(same) >= (10 if task.metric == "nll" else 12)  # a text may not reach back far enough before the place


def test_metric_is_one_of_three(task):
    assert task.metric in ("answer", "nll", "generation")
    for example in made(task):
        if task.metric == "generation":
            assert 0 < example.meta["prompt"] < len(example.context)


def test_seed_and_index_are_told(task):
    assert [(e.meta["seed"], e.meta["index"]) for e in made(task, n=3, seed=7)] == [(7, 0), (7, 1), (7, 2)]


def test_no_network_and_no_folder_of_ours(task, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise AssertionError("a task reached for the network")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    before = made(task)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert made(task) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.timed
def test_generation_is_not_slow(task):
    made(task, n=1)
    start = time.process_time()
    made(task, n=20)
    assert time.process_time() - start < 2


@pytest.mark.timed
def test_data_are_never_slower_than_a_model(task):
    made(task, n=1, count="quarters", length=4096)
    start = time.process_time()
    made(task, n=5, count="quarters", length=4096)
    assert (time.process_time() - start) / 5 < 0.2


def test_too_short_a_length_is_one_clear_line(task):
    with pytest.raises(AssayError) as caught:
        list(task.examples(1, 0, 0, COUNTS["words"]))
    assert "\n" not in str(caught.value) and re.search(r"\b0\b", str(caught.value))
