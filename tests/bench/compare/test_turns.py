"""Several questions on one compressed context, and several answers to one question."""

import pytest
import torch
from tests.bench.compare.conftest import Characters, make_tiny

from assay.bench.compare.measure import Bench, Extras
from assay.bench.compare.prompts import tokenise
from assay.bench.compare.run import compare
from assay.core.expressions import build
from assay.tasks import Example, Task

CONTEXT = "The gate has number 4417. " + "Nobody counts the steps. " * 12 + "The mill has number 2210.\n"
ASKED = (" Gate:", "\nMill:", "\nGate again:")


class Asked(Task):
    """One context and three turns, each with its own answer."""

    answers = (" 4417", " 2210", " 4417")

    def examples(self, n, seed, length, count):
        at = [CONTEXT.index("4417"), CONTEXT.index("2210")]
        spans = tuple((k, k + 4) for k in at)
        yield Example(CONTEXT, ASKED[0], self.answers, spans, {"turns": ASKED[1:]})


def bench(task, policies=(), model=None):
    model = model or make_tiny()
    [example] = task.examples(1, 0, 999, len)
    prompt = tokenise(model.tokenizer, example, metric=task.metric)
    return Bench(model, task, prompt, {name: build(name, "policy") for name in policies})


def test_turns_are_cut_so_that_all_pieces_are_the_talk_and_nothing_twice():
    [example] = Asked().examples(1, 0, 999, len)
    prompt = tokenise(Characters(), example, metric="answer")
    talk = CONTEXT + "".join(q + a for q, a in zip(ASKED, Asked.answers, strict=True))
    ids = prompt.context + prompt.question + prompt.answer[:-1]
    for turn in prompt.turns:
        ids += turn.question + turn.answer[:-1]
    assert list(ids + prompt.turns[-1].answer[-1:]) == Characters().encode(talk)
    assert len(prompt) == len(ids) + 1 + len(prompt.turns)
    other = tokenise(Characters(), Example(CONTEXT, ASKED[0], Asked.answers, example.spans), metric="answer")
    assert other.digest != prompt.digest and not other.turns


@pytest.mark.parametrize("generate", [False, True])
@pytest.mark.parametrize("policy, budget", [("full", "1"), ("knorm", "1")])
def test_with_the_whole_cache_turns_are_read_as_in_one_pass(generate, policy, budget):
    measured = bench(Asked(), [] if policy == "full" else [policy])
    measured.measure("full", "1", Extras())
    found = measured.measure(policy, budget, Extras(generate=generate))
    talk, expected = CONTEXT, 0.0
    for question, answer in zip(ASKED, Asked.answers, strict=True):
        talk += question + answer
        ids = measured.model.tokenizer.encode(talk)
        with torch.no_grad():
            chances = measured.model(torch.tensor([ids]))[0][0].log_softmax(-1)
        expected += sum(float(chances[k - 1, ids[k]]) for k in range(len(ids) - len(answer), len(ids)))
    assert found["logprob"] == pytest.approx(expected / 3, abs=1e-3)


def test_the_budget_is_held_between_turns(monkeypatch):
    measured = bench(Asked(), ["knorm(recent=8)"])
    measured.measure("full", "1", Extras())
    held = []
    original = type(measured)._answer

    def spy(self, asked, first, state):
        held.append(max(c for store in state.growing().values() for c in store.counts))
        return original(self, asked, first, state)

    monkeypatch.setattr(type(measured), "_answer", spy)
    found = measured.measure("knorm(recent=8)", "0.25", Extras(speed_steps=1))
    budget = len(measured.prompt.context) // 4
    asked = [measured.prompt, *measured.prompt.turns]
    assert held == [n for n in held if n <= budget + max(len(t.question) for t in asked)] and len(held) == 3
    whole = bench(Asked()).measure("full", "1", Extras())
    assert found["logprob"] != pytest.approx(whole["logprob"], abs=1e-3) and found["kept"] == budget


class Written(Task):
    """Answers are what the model itself writes in the first and last of three turns."""

    def __init__(self, answers):
        self.answers = answers

    def examples(self, n, seed, length, count):
        yield Example(CONTEXT, ASKED[0], self.answers, (), {"turns": ASKED[1:]})


def test_the_score_is_the_share_of_turns_answered_rightly():
    model = make_tiny()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    answers, talk = [], CONTEXT
    for turn, question in enumerate(ASKED):
        talk += question
        answers.append("~~~" if turn == 1 else model.generate(talk, max_tokens=3))
        talk += answers[-1]
    assert all(len(answer.strip()) > 1 for answer in answers)
    for generate in (False, True):
        found = bench(Written(tuple(answers)), model=model).measure("full", "1", Extras(generate=generate))
        assert found["score"] == pytest.approx(2 / 3), generate
        assert len(found["answer"].split("\n")) >= 3


def test_survived_is_the_mean_over_answers_each_with_its_best_copy():
    policy = "streaming_llm(sink=4, recent=60)"
    measured = bench(Asked(), [policy])
    measured.measure("full", "1", Extras())
    assert measured.measure(policy, "64tok", Extras())["survived"] == 0.5  # the mill is near the end, the gate is not
    measured.task.match = "any"
    assert measured.measure(policy, "64tok", Extras())["survived"] == 1


def test_answers_in_any_order_are_scored_on_what_is_written(tmp_path):
    model = make_tiny()
    found = compare(
        model, "knorm", tasks="multi_value(values=2, digits=2)", budgets="0.5", length=400, examples=1, speed_steps=1,
        out=tmp_path, quiet=True,
    )  # fmt: skip
    written = {len(cell["answer"]) for cell in found.cells}
    assert written == {next(iter(found.plan.prompts.values()))[0].example.meta["max_tokens"]}
