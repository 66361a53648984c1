"""Tasks that carry RULER's names are built and scored as RULER's own generators build and score them.

`tests/fixtures/ruler.json` records the structure of what those generators made (how: `make_ruler.py` beside it).
Sentences differ and are not compared; numbers, orders, frequencies and scores are.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from assay.tasks import resolve
from assay.tasks.common_words import CommonWords
from assay.tasks.frequent_words import counts_of
from assay.tasks.scorers import string_match_all, string_match_part
from assay.tasks.text import english

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "ruler.json").read_text())
SENTENCE = re.compile(r"One of the special magic numbers for ([a-z-]+) is: (\d+)\.")
STATEMENT = re.compile(r"VAR ([A-Z]+) = (VAR [A-Z]+|\d+)")


def words(text: str) -> int:
    return len(text.split())


def made(expression: str, n: int, length: int):
    return list(resolve(expression).examples(n, 0, length, words))


@pytest.mark.parametrize(
    "expression, name",
    [
        ("needle", "niah_single_2"),
        ("multikey", "niah_multikey_1"),
        ("multi_value", "niah_multivalue"),
        ("multi_query", "niah_multiquery"),
    ],
)
def test_needles(expression, name):
    record = RECORD[name]
    for example in made(expression, 20, 900):
        facts = SENTENCE.findall(example.context)
        assert len(facts) == record["needles"] and len({key for key, _ in facts}) == record["keys"]
        assert len(example.answers) == record["answers"]
        assert all(len(answer.strip()) == record["digits"] for answer in example.answers)
        asked = {key for key, _ in facts if key in example.question}
        assert len(asked) == record["asked"]
        told = {value for key, value in facts if key in asked}
        assert {answer.strip() for answer in example.answers} == told and record["answers in the order asked"]
    assert not record["two at one place"]


@pytest.mark.parametrize("expression, name", [("multi_value", "niah_multivalue"), ("multi_query", "niah_multiquery")])
def test_depths_are_those_of_the_same_grid(expression, name):
    record = RECORD[name]
    drawn = {round(depth, 2) for example in made(expression, 200, 200) for depth in example.meta["depths"]}
    assert len(drawn) == record["depths"] == 40
    assert (min(drawn), max(drawn)) == (record["shallowest"], record["deepest"]) == (0, 1)


@pytest.mark.parametrize("shown", ["text", "example"])
def test_variables(shown):
    record = RECORD["vt"][shown]
    for example in made("variable_tracking", 30, 700):
        first, second, question = (example.context + example.question).split("Question: ")
        answers = [answer.strip() for answer in example.answers]
        worked = second.split("\n\n", 1)[1]
        if shown == "example":
            worked, (question, told) = first, second.split("\n\n")[0].split(", namely:")
            answers = told.split()
        statements = STATEMENT.findall(worked)
        assert len(statements) == record["statements"] and len(answers) == record["answers"]
        assert {len(name) for name, _ in statements} == {record["letters"]}
        assert len(statements[0][1]) == record["digits"] and statements[0][1] in question
        in_order = [name for name, _ in statements] == answers
        passed_on = [source for _, source in statements[1:]] == [f"VAR {name}" for name in answers[:-1]]
        assert (in_order and passed_on) == record["in order"]
        assert (f"{len(answers)} variables" in question) == record["says how many"]
        between = [piece.count("\n") - 1 for piece in STATEMENT.split(worked)[3:-1:3]]
        assert min(between) >= RECORD["vt"]["least filler between two"]


@pytest.mark.parametrize("record", RECORD["cwe"], ids=lambda record: str(record["length"]))
def test_common_words(record):
    for example in CommonWords().examples(5, 0, record["length"], lambda text: len(text.split()) // 2):
        *shown, last = [part for part in (example.context + example.question).split("\n") if part.startswith("1. ")]
        answers = [answer.strip() for answer in example.answers]
        assert len(answers) == record["answers"]
        for text, told in ((last, record["list"]), (shown[0], record["worked example"])):
            listed = re.findall(r"(\d+)\. (\S+)", text)
            assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
            counts = Counter(word for _, word in listed)
            common = answers if text is last else [word for word, _ in counts.most_common(10)]
            assert sorted(counts[word] for word in common) == told["common"]
            assert {n for word, n in counts.items() if word not in common} == set(told["others"])
            if text is not last:
                assert (len(listed), len(counts)) == (told["items"], told["different"])


@pytest.mark.parametrize("record", RECORD["fwe"], ids=lambda record: str(record["length"]))
def test_frequent_words(record):
    counts = counts_of(record["words"], record["ranks"], record["alpha"])
    assert counts[counts > 0].tolist() == record["counts"]
    for example in made("frequent_words", 5, record["length"]):
        said = Counter(re.findall(r"\.\.\.|[a-z]+", example.context.splitlines()[1]))
        ranked = [word for word, _ in said.most_common()]
        assert (ranked[0] == "...") == record["noise first"]
        assert [ranked[rank].strip() for rank in record["answers"]] == [answer.strip() for answer in example.answers]
        assert {len(answer.strip()) for answer in example.answers} == {record["letters"]}
        assert sorted(said.values(), reverse=True) == example.meta["counts"]


@pytest.mark.parametrize("hops", [1, 2])
def test_documents(hops):
    record = RECORD["qa"][hops - 1]
    for example in made(f"documents(hops={hops})", 10, 900):
        numbers = [int(number) for number in re.findall(r"^Document (\d+):$", example.context, re.MULTILINE)]
        assert (numbers == list(range(1, len(numbers) + 1))) == record["numbered from one"]
        assert len(example.meta["supports"]) == record["needed"] and len(numbers) == example.meta["documents"]
        instruction = example.context.count("Say the answer alone.")
        assert {1: "once", 2: "before and after"}[instruction] == record["instruction"]


def test_scores():
    for row in RECORD["scores"]:
        assert string_match_all(row["output"], row["answers"]) == row["all"], row
        assert string_match_part(row["output"], row["answers"]) == row["part"], row


def test_the_haystack_has_room_for_a_window_of_ruler():
    assert len(english()) > 25_000
