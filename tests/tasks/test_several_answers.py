"""Needles with several answers, several questions, or several turns."""

import re

import pytest

from assay.tasks import resolve

SENTENCE = re.compile(r"One of the special magic numbers for ([a-z-]+) is: (\d+)\.")


def words(text: str) -> int:
    return len(text.split())


def made(expression: str, n: int = 12, length: int = 500, seed: int = 0):
    return list(resolve(expression).examples(n, seed, length, words))


def test_one_key_has_all_its_values_and_they_are_told_in_the_order_of_the_text():
    for example in made("multi_value(values=5)"):
        facts = SENTENCE.findall(example.context)
        assert {key for key, _ in facts} == {example.meta["key"]} and len(set(facts)) == 5
        assert [answer.strip() for answer in example.answers] == [value for _, value in facts]
        assert [example.context[a:b] for a, b in example.spans] == [value for _, value in facts]


def test_several_keys_are_asked_for_and_answered_in_the_order_of_the_question():
    for example in made("multi_query(queries=3, keys=6)"):
        facts = dict(SENTENCE.findall(example.context))
        assert len(facts) == 6 and len(example.answers) == 3
        asked = re.search(r"for (\S+), (\S+), and (\S+) in the text", example.question).groups()
        assert list(asked) == example.meta["keys"]
        assert [facts[key] for key in asked] == [answer.strip() for answer in example.answers]


@pytest.mark.parametrize("queries, said", [(1, "number for {0} in"), (2, "numbers for {0} and {1} in")])
def test_one_and_two_keys_are_asked_for_in_plain_words(queries, said):
    [example] = made(f"multi_query(queries={queries})", n=1)
    assert said.format(*example.meta["keys"]) in example.question


def test_every_turn_asks_for_another_fact_and_each_has_its_answer():
    for example in made("multi_turn(turns=3)"):
        facts = dict(SENTENCE.findall(example.context))
        questions = [example.question, *example.meta["turns"]]
        assert len(facts) == 3 == len(questions) == len(example.answers)
        for key, question, answer in zip(example.meta["keys"], questions, example.answers, strict=True):
            assert question.count(key) == 2 and facts[key] == answer.strip()
        assert all(question.startswith("\n") for question in questions[1:])


def test_needles_of_one_example_lie_at_different_depths_of_the_grid():
    for expression in ("multi_value(values=40)", "multi_query(queries=40, keys=40)", "multi_turn(turns=40)"):
        for example in made(expression, n=2, length=1200):
            assert sorted(round(39 * depth) for depth in example.meta["depths"]) == list(range(40))


def test_a_pass_key_is_said_as_often_as_asked_among_lines_that_repeat():
    for example in made("passkey(times=3, digits=6)", length=400):
        key = example.answers[0].strip()
        assert len(key) == 6 and [example.context[a:b] for a, b in example.spans] == [key] * 3
        lines = example.context.splitlines()[1:]
        assert len(set(lines)) == 2 and sum(key in line for line in lines) == 1
    depths = [example.spans[0][0] / len(example.context) for example in made("passkey", n=100, length=400)]
    assert min(depths) < 0.2 and max(depths) > 0.8
