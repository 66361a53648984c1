"""Recall and restated values: the tasks over small closed vocabularies."""

import numpy as np
import pytest

from assay.core.errors import AssayError
from assay.tasks.recall import Recall
from assay.tasks.restated import Restated


def words(text: str) -> int:
    return len(text.split())


def test_no_word_of_a_vocabulary_is_part_of_another_of_its_kind():
    for task in (Recall(keys=200, values=11), Restated(names=120, values=101)):
        vocabulary = task.vocabulary
        assert len(set(vocabulary)) == len(vocabulary)
        assert not any(a != b and a in b for a in vocabulary for b in vocabulary)


@pytest.mark.parametrize(
    "task, length", [(Recall(), 300), (Recall(keys=20, pairs=7, queries=3), 90), (Recall(pairs=4), 15)]
)
def test_recall_arrays_answer_as_their_pairs_say(task, length):
    ids, asked = task.batch(64, length, seed=3)
    assert ids.shape == asked.shape == (64, length) and ids.max() < len(task.vocabulary)
    stop, ask = task.vocabulary.index("."), task.vocabulary.index("?")
    for row, answers in zip(ids, asked, strict=True):
        room = length - 3 * task.queries
        stops = np.flatnonzero(row[:room] == stop)
        pairs = dict(zip(row[stops - 2], row[stops - 1], strict=True))
        assert len(pairs) == len(stops) == min(task.pairs or task.keys, room // 3)
        places = np.flatnonzero(answers)
        assert len(places) == task.queries and places[-1] == length - 1
        assert (row[places - 2] == ask).all() and [pairs[key] for key in row[places - 1]] == row[places].tolist()
        assert len(set(row[places - 1])) == task.queries


def test_recall_pairs_stand_anywhere():
    ids, _ = Recall(keys=8, pairs=2).batch(400, 60, seed=0)
    places = np.nonzero(ids[:, :57] == 0)[1]
    assert places.min() == 2 and places.max() == 56
    assert 25 < places.mean() < 33


def test_recall_examples_are_rows_of_its_arrays():
    task = Recall(keys=16, pairs=6, queries=2)
    [example] = task.examples(1, 5, 50, words)
    vocabulary = task.vocabulary
    row = [vocabulary.index(word) for word in (example.context + example.question + example.answers[0]).split()]
    assert len(row) == 51 and example.meta["pairs"] == 6
    key = example.meta["key"]
    assert example.question.split()[-1] == key and f"{key}{example.answers[0]} ." in example.context
    with pytest.raises(AssayError, match="too few for 6 pairs"):
        task.batch(1, 20, seed=0)


def test_restated_arrays_never_contradict_themselves():
    task = Restated(rho=0.5, variables=4, derived=3)
    ids, asked = task.batch(64, 203, seed=1)
    equals = task.vocabulary.index("=")
    for row, answers in zip(ids, asked, strict=True):
        places = np.flatnonzero(row == equals)
        told: dict[int, int] = {}
        for place in places:
            known = row[place - 1] in told
            assert told.setdefault(row[place - 1], row[place + 1]) == row[place + 1]
            assert answers[place + 1] == known
        assert len(told) == 7 and answers.sum() == len(places) - 7
        assert places[:4].tolist() == [1, 5, 9, 13] and task.prompt_words == 16


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 1.0])
def test_restatements_come_at_exactly_the_rate_asked_for(rho):
    task = Restated(rho=rho, variables=4, derived=4)
    ids, asked = task.batch(20, 16 + 100 * 4 + 3, seed=2)
    assert ((asked[:, :-1]).sum(axis=1) == round(rho * 96)).all()


def test_restatements_spread_over_steps_and_variables():
    task = Restated(rho=0.25, variables=4, derived=0, names=4)
    ids, asked = task.batch(500, 16 + 40 * 4 + 3, seed=4)
    steps = asked[:, 16:-3].reshape(500, 40, 4).any(axis=2).sum(axis=0)
    assert abs(steps - 125).max() < 5 * np.sqrt(125 * 0.75)
    names = np.bincount(ids[:, :-3][:, np.r_[16:176:4]][asked[:, 16:-3].reshape(500, 40, 4).any(axis=2)])
    assert names[names > 0].min() > 0.9 * names.max()


@pytest.mark.parametrize("asked", ["prompt", "trace", "any"])
def test_restated_examples_say_where_the_value_was_assigned(asked):
    task = Restated(asked=asked, rho=0.2)
    found = set()
    for example in task.examples(30, 0, 400, words):
        statement = f"{example.meta['key']} ={example.answers[0]} ;"
        prompt = example.context[: example.meta["prompt"]]
        assert prompt.endswith(";") and prompt.count(";") == 8 and example.context[len(prompt)] == " "
        assert (statement in prompt) == (example.meta["where"] == "prompt")
        assert example.context.count(statement) == example.meta["copies"] == len(example.spans)
        assert example.question == f" {example.meta['key']} ="
        found.add(example.meta["where"])
    assert found == ({"prompt", "trace"} if asked == "any" else {asked})


def test_without_restatements_a_value_stands_once_and_with_more_more_often():
    copies = [
        np.mean([e.meta["copies"] for e in Restated(rho=rho).examples(40, 0, 600, words)]) for rho in (0, 0.2, 0.6)
    ]
    assert copies[0] == 1 and 1.5 < copies[1] < copies[2] / 1.5


def test_too_short_a_trace_is_refused():
    with pytest.raises(AssayError, match="99 are needed"):
        Restated().batch(1, 98, seed=0)
    assert Restated().batch(1, 99, seed=0)[0].shape == (1, 99)
