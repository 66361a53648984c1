"""Windows of real text, and the user's own files."""

import json

import pytest

from assay.core.errors import AssayError
from assay.tasks import resolve
from assay.tasks.text import english


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("name", ["english", "code"])
def test_the_answer_is_how_the_text_truly_goes_on(name):
    task = resolve(f"ppl(text={name}, continuation=40)")
    for example in task.examples(6, 0, 300, words):
        assert example.context + example.answers[0] in task.text.text
        assert words(example.context) == 300 and words(example.answers[0]) == 40
        assert not example.context[0].isspace() and not example.context[-1].isspace()
        assert example.answers[0][0].isspace()


def test_windows_come_from_all_over_the_text():
    starts = [example.meta["words"][0] for example in resolve("ppl").examples(60, 0, 300, words)]
    assert min(starts) < 0.15 * len(english()) and max(starts) > 0.85 * len(english())


def test_a_file_just_long_enough_has_one_window_and_a_shorter_one_none(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(" ".join(f"w{k}" for k in range(120)))
    task = resolve(f"text('{path}', continuation=20)")
    [example] = task.examples(1, 0, 100, words)
    assert example.context.split() == [f"w{k}" for k in range(100)]
    assert example.answers[0].split() == [f"w{k}" for k in range(100, 120)]
    with pytest.raises(
        AssayError, match="mine.txt holds 120 tokens, a window needs 110 .* 20; take a length of at most 99"
    ):
        next(iter(task.examples(1, 0, 110, words)))


def test_a_script_without_spaces_is_cut_too(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("話" * 3000, encoding="utf-8")
    for example in resolve(f"text('{path}', continuation=50)").examples(3, 0, 400, len):
        assert 380 < len(example.context) <= 400 and 30 < len(example.answers[0]) <= 50


def lines(tmp_path, *rows) -> str:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "\n".join(row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows),
        encoding="utf-8",
    )
    return str(path)


GOOD = {"context": "Ada wrote it. Ada did.", "question": "Who wrote it?", "answers": ["Ada"]}


def test_lines_become_examples_with_spans_and_joined_as_text(tmp_path):
    separate = {"context": "x\u2028y ", "question": "go: ", "answers": "yes"}
    task = resolve("jsonl:" + lines(tmp_path, GOOD, "", separate))
    first, second = sorted(task.examples(9, 0, 100, words), key=lambda example: example.meta["line"])
    assert first.context + first.question == "Ada wrote it. Ada did.\nWho wrote it?"
    assert first.answers == (" Ada",) and first.spans == ((0, 3), (14, 17)) and first.meta["line"] == 1
    assert (
        second.context == "x\u2028y " and second.answers == ("yes",) and second.spans == () and second.meta["line"] == 3
    )


def test_a_question_may_be_empty(tmp_path):
    [example] = resolve("jsonl:" + lines(tmp_path, GOOD | {"context": "It was", "question": ""})).examples(
        1, 0, 9, words
    )
    assert example.context + example.question + example.answers[0] == "It was Ada"


def test_each_line_is_taken_at_most_once_in_an_order_of_the_seed(tmp_path):
    task = resolve("jsonl:" + lines(tmp_path, *[GOOD | {"question": f"{k}?"} for k in range(30)]))
    orders = [[example.meta["line"] for example in task.examples(50, seed, 100, words)] for seed in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(1, 31)) and orders[0] != orders[1]


def test_several_answers_are_all_wanted_or_any(tmp_path):
    path = lines(tmp_path, GOOD | {"answers": ["Ada", "Lovelace"]})
    for match, wanted in (("all", 0.5), ("any", 1.0)):
        task = resolve(f"jsonl('{path}', match={match})")
        [example] = task.examples(1, 0, 100, words)
        assert task.score(example, "it was ADA.") == wanted and task.score(example, "Grace") == 0


@pytest.mark.parametrize(
    "row, why",
    [
        ({"context": "c", "question": "q"}, "line 2 lacks answers; it has context, question"),
        ({"answers": ["a"]}, "line 2 lacks context and question; it has answers"),
        ({}, "line 2 lacks context and question and answers; it has nothing"),
        ([1], "line 2: an object with context, question and answers is needed, not list"),
        ('{"context": ', "line 2 is not JSON"),
        (GOOD | {"answers": []}, "line 2: answers must be"),
        (GOOD | {"answers": ["a", 3]}, "line 2: answers must be"),
        (GOOD | {"answers": [" "]}, "line 2: answers must be"),
        (GOOD | {"question": None}, "line 2: question must be text, not NoneType"),
        (GOOD | {"context": " "}, "line 2: context is empty"),
    ],
)
def test_a_bad_line_is_named_with_what_it_lacks(tmp_path, row, why):
    with pytest.raises(AssayError, match=why) as caught:
        resolve("jsonl:" + lines(tmp_path, GOOD, row))
    assert "mine.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_a_line_longer_than_the_length_is_named(tmp_path):
    task = resolve("jsonl:" + lines(tmp_path, GOOD))
    with pytest.raises(
        AssayError, match="line 1: its prompt has 8 tokens, more than the length of 7; ask for a length of 8"
    ):
        list(task.examples(1, 0, 7, words))


HALF = '{"context": "\\ud800 a", "question": "b", "answers": ["c"]}'


@pytest.mark.parametrize(("line", "why"), [("[" * 100_000, "line 1 is not JSON"), (HALF, "line 1 holds half")])
def test_lines_that_break_a_reader_are_named(tmp_path, line, why):
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(AssayError, match=why):
        resolve(f"jsonl:{tmp_path / 'x.jsonl'}")


def test_a_class_that_is_no_task_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("class X:\n    pass\n")
    with pytest.raises(AssayError, match="is no task"):
        resolve(f"{tmp_path}/mine.py:X")
