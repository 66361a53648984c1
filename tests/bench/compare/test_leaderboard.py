"""The leaderboard: what is known comes first, intervals cover, and the front is what nothing beats."""

import numpy as np
import pytest
from tests.bench.compare.test_summarise import RUN, cells, coin

from assay.bench.compare.leaderboard import front, kept_quality
from assay.bench.compare.summarise import summarise


def pair(mine, full, nats=False):
    return nats, np.array(mine, dtype=float), np.array(full, dtype=float)


def test_the_front_is_what_nothing_beats_for_fewer_bytes():
    points = {
        "full": (1.0, 1.0),
        "good": (0.5, 0.9),
        "worse": (0.6, 0.8),
        "small": (0.1, 0.2),
        "equal": (0.5, 0.9),
        "silly": (2.0, 1.0),
    }
    assert front(points) == ("small", "good", "full")


def test_what_is_kept_is_a_share_of_what_full_answers():
    full = [1] * 8 + [0] * 2
    assert kept_quality([pair(full, full)]).mean == 1.0
    half = kept_quality([pair([1] * 4 + [0] * 6, full)])
    assert half.mean == pytest.approx(0.5) and half.low < 0.5 < half.high
    assert kept_quality([pair([2.5] * 10, [2.0] * 10, nats=True)]).mean == pytest.approx(np.exp(-0.5))
    both = kept_quality([pair([1] * 4 + [0] * 6, full), pair([2.0] * 10, [2.0] * 10, nats=True)])
    assert both.mean == pytest.approx(0.75)


def test_no_difference_in_ten_answers_still_allows_some():
    found = kept_quality([pair([1] * 10, [1] * 10)])
    assert found.mean == 1.0 and found.low == pytest.approx(0.05 ** (1 / 10)) and found.high == 1.0


def test_too_few_examples_have_no_interval():
    found = kept_quality([pair([1] * 5, [1] * 5)])
    assert found.mean == 1.0 and found.low is None


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        full = np.ones(40)
        mine = rng.random(40) < 0.7
        found = kept_quality([pair(mine, full)])
        covered += found.low <= 0.7 <= found.high
    assert 180 <= covered <= 198


def test_the_best_stands_first_and_what_says_nothing_does_not_count():
    full = coin(0.9)
    made = cells({"full": full, "random": coin(0.3, seed=1), "p": full})
    made += cells({"full": [0.0] * 40, "random": [1.0] * 40, "p": [0.0] * 40}, task="hopeless")
    found = summarise({**RUN, "grid": {**RUN["grid"], "tasks": ["t", "hopeless"]}}, made).leaders
    assert [m.name for m in found] == ["p@0.5", "full", "random@0.5"]
    assert [m.front for m in found] == [
        True,
        False,
        False,
    ]  # p keeps as much as full in fewer bytes, and random has p's bytes


def test_a_policy_that_missed_a_task_has_no_place():
    made = cells({"full": [1.0] * 8, "random": [1.0] * 8, "p": [1.0] * 8}) + cells(
        {"full": [1.0] * 8, "random": [1.0] * 8}, task="u"
    )
    assert [m.name for m in summarise(RUN, made).leaders if m.policy == "p"] == []
