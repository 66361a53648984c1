"""What is said of known cells: a planted difference is found, none is invented, and what says nothing is named."""

import math
import random

import pytest

from assay.bench.compare.recommend import recommend
from assay.bench.compare.summarise import difference, estimate, summarise

RUN = {
    "fixed": {"model": "m"},
    "grid": {"policies": ["full", "random", "p"], "budgets": ["0.5"], "tasks": ["t"], "examples": 40},
}


def cells(scores: dict[str, list[float]], task="t", **more):
    return [
        {
            "cell": f"{task}{policy}{i}", "task": task, "policy": policy, "budget": "1" if policy == "full" else "0.5", "example": i,
            "metric": "answer", "score": score, "logprob": -1.0 - (1 - score), "answer_tokens": 2, "tokens": 100,
            "kept": 100 if policy == "full" else 50, "bytes": 100 if policy == "full" else 60, "bytes_full": 100,
            "bytes_eligible": 80 if policy == "full" else 40, "bytes_full_eligible": 80, "skipped": None, **more,
        }
        for policy, its in scores.items()
        for i, score in enumerate(its)
    ]  # fmt: skip


def row(summary, policy, task=0):
    return next(r for r in summary.tasks[task].rows if r.policy == policy)


def coin(share, n=40, seed=0):
    rng = random.Random(seed)
    return [float(rng.random() < share) for _ in range(n)]


def test_a_planted_loss_is_worse_and_its_absence_is_not_distinguishable():
    full = coin(0.9)
    found = summarise(RUN, cells({"full": full, "random": coin(0.3, seed=1), "p": full}))
    assert row(found, "random").against_full.verdict == "worse"
    assert row(found, "p").against_full.verdict == "not distinguishable" and row(found, "p").against_full.identical
    assert row(found, "p").against_random.verdict == "better" and row(found, "random").against_random is None


def test_noise_is_seldom_called_a_difference():
    verdicts = []
    for seed in range(40):
        mine, theirs = coin(0.7, seed=seed), coin(0.7, seed=1000 + seed)
        pair = [{i: {"score": s} for i, s in enumerate(values)} for values in (mine, theirs)]
        verdicts.append(difference(*pair, lambda c: c["score"]).verdict)
    assert verdicts.count("not distinguishable") >= 35


def test_examples_pair_by_their_number_not_by_their_order():
    mine = {0: {"score": 1.0}, 1: {"score": 0.0}}
    theirs = {1: {"score": 0.0}, 0: {"score": 1.0}, 2: {"score": 1.0}}
    found = difference(mine, theirs, lambda c: c["score"])
    assert found.identical and found.examples == 2 and found.verdict == "too few examples"


def test_likelihood_is_oriented_so_that_positive_is_better():
    rng = random.Random(0)
    noise = [rng.gauss(0, 0.05) for _ in range(40)]
    made = cells({"full": [0] * 40, "random": [0] * 40, "p": [0] * 40}, metric="nll")
    for c in made:
        per_token = {"full": -2.0, "random": -3.0, "p": -2.5}[c["policy"]] + noise[c["example"]] * (
            1 + (c["policy"] == "p")
        )
        c["logprob"] = per_token * c["answer_tokens"]
    found = summarise(RUN, made)
    assert row(found, "p").measure == "nll" and row(found, "p").quality.mean == pytest.approx(2.5, abs=0.05)
    assert row(found, "p").against_full.verdict == "worse" and row(found, "p").against_random.verdict == "better"


def test_a_task_that_full_cannot_answer_says_nothing():
    found = summarise(RUN, cells({"full": coin(0.0), "random": coin(0.0), "p": coin(0.0)}))
    assert "full itself answers 0%" in found.tasks[0].says_nothing
    assert found.recommendation.winner is None and "says anything" in found.recommendation.says
    assert any("t says nothing here" in line for line in found.findings)
    blind = cells({"full": [0] * 40, "random": [0] * 40}, metric="nll", logprob=-2 * math.log(50))
    assert "no better than chance" in summarise({**RUN, "vocab_size": 50}, blind).tasks[0].says_nothing


def test_too_few_examples_carry_no_verdict():
    found = summarise(RUN, cells({"full": [1.0] * 3, "random": [0.0] * 3, "p": [1.0] * 3}))
    assert row(found, "random").against_full.verdict == "too few examples" and row(found, "p").quality.low is None
    assert any("nothing can be told apart" in line for line in found.findings)
    assert found.recommendation.says.startswith(
        "On only 3 examples a task, too few to exclude any loss: p@0.5 holds 60%"
    )


def test_a_large_loss_on_few_examples_is_undecided_and_never_called_indistinguishable():
    """Five of six answers lost: the bootstrap excludes zero, the sign-flip test (p = 0.0625) does not."""
    found = summarise(RUN, cells({"full": [1.0] * 6, "random": [0.0] * 6, "p": [0, 0, 0, 0, 0, 1.0]}))
    assert row(found, "p").against_full.verdict == "too few examples" and row(found, "p").against_full.high < 0
    assert not any("Not distinguishable from the full cache" in line for line in found.findings)


def test_what_is_not_distinguishable_says_how_much_it_may_lose_all_the_same():
    found = summarise(RUN, cells({"full": [1.0] * 10, "random": [0.0] * 10, "p": [1.0] * 9 + [0.0]}))
    [line] = [line for line in found.findings if "Not distinguishable" in line]
    assert line == "Not distinguishable from the full cache on any task: p@0.5 (a loss of up to 30% is not excluded)."


def test_an_estimate_of_all_right_still_has_a_width():
    assert estimate([1.0] * 10).low < 0.8 and estimate([0.5, 0.7, 0.9] * 3).high < 0.9


def test_skipped_cells_are_counted_by_reason_and_not_in_means():
    made = cells({"full": [1.0] * 8, "random": [1.0] * 8, "p": [1.0] * 8})
    for c in made:
        if c["policy"] == "p" and c["example"] < 2:
            c.update(skipped="no room", score=None)
    found = summarise(RUN, made)
    assert [(s.what, s.cells, s.why) for s in found.skipped] == [("p@0.5 on t", 2, "no room")]
    assert row(found, "p").quality.examples == 6 and row(found, "p").against_full.examples == 6


def test_failures_are_those_that_full_gets_right():
    found = summarise(RUN, cells({"full": [1, 1, 0, 1.0], "random": [1, 1, 1, 1.0], "p": [0, 1, 0, 0.0]}))
    assert [(f.policy, f.example) for f in found.failures] == [("p", 0), ("p", 3)]


def two_tasks(loss):
    full = [1.0] * 40
    lossy = [0.0] * round(40 * loss) + [1.0] * (40 - round(40 * loss))
    made = cells({"full": full, "random": lossy, "p": full}) + cells(
        {"full": full, "random": full, "p": lossy}, task="u"
    )
    return summarise({**RUN, "grid": {**RUN["grid"], "tasks": ["t", "u"]}}, made)


def test_the_winner_must_hold_on_every_task():
    assert recommend(RUN, two_tasks(0.5).tasks, max_loss=0.01).winner is None
    found = recommend(RUN, two_tasks(0.5).tasks, max_loss=0.6, max_bytes=0.7)
    assert (
        found.winner in ("p@0.5", "random@0.5")
        and found.code == f'assay.load("m").generate(prompt, cache="{found.winner}")'
    )
    assert recommend(RUN, two_tasks(0.5).tasks, max_loss=0.6, max_bytes=0.5).winner is None


def test_no_difference_in_a_few_examples_is_no_proof_of_none():
    found = recommend(RUN, two_tasks(0.0).tasks)
    assert found.winner and "do not exclude a loss of 7.2%" in found.says  # 1 - 0.05 ** (1 / 40)


def test_a_loss_is_that_on_shared_examples_where_a_run_is_unfinished():
    """full has an easy example more than the policy; without pairing that would look like a loss."""
    made = cells({"full": [0.0] * 7 + [1.0] * 13, "random": [0.0] * 20, "p": [0.0] * 7 + [1.0] * 3})
    found = recommend(RUN, summarise(RUN, made).tasks)
    assert found.winner == "p@0.5" and "loses nothing measured" in found.says
