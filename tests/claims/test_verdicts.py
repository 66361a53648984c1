"""Verdicts follow from the wanted side and the interval, at the edges too."""

import math

import numpy as np
import pytest

from assay.claims.verdicts import Wanted, interval


@pytest.mark.parametrize(
    ("wanted", "low", "high", "verdict"),
    [
        ({"at_least": 0.5}, 0.5, 0.9, "holds"),
        ({"at_least": 0.5}, 0.1, 0.49, "differs"),
        ({"at_least": 0.5}, 0.4, 0.6, "inconclusive"),
        ({"at_least": 0.5}, 0.1, 0.5, "inconclusive"),
        ({"above": 0.0}, 0.0, 0.3, "inconclusive"),
        ({"above": 0.0}, 0.0, 0.0, "differs"),
        ({"above": 0.0}, 0.01, 0.3, "holds"),
        ({"below": 1.0}, 1.0, 1.2, "differs"),
        ({"at_most": 1.0}, 0.2, 1.0, "holds"),
        ({"at_least": 0.0, "at_most": 1.0}, 0.2, 0.8, "holds"),
        ({"at_least": 0.0, "at_most": 1.0}, -0.5, 1.5, "inconclusive"),
        ({"at_least": 0.0, "at_most": 1.0}, 1.1, 1.5, "differs"),
        ({"at_least": 0.0, "at_most": 1.0}, -0.5, -0.1, "differs"),
        ({"at_least": 0.5}, math.nan, math.nan, "inconclusive"),
        ({"at_least": 0.5}, 0.6, math.inf, "inconclusive"),
    ],
)
def test_an_interval_is_judged_by_the_side_it_lies_on(wanted, low, high, verdict):
    assert Wanted(**wanted).judge(low, high) == verdict


def test_nothing_wanted_is_refused():
    with pytest.raises(ValueError, match="must be said"):
        Wanted()


def test_what_is_wanted_reads_as_words():
    assert str(Wanted(at_least=0.5, below=1)) == "at least 0.5 and below 1"


def test_the_interval_of_few_values_is_students():
    low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (low + high) / 2 == pytest.approx(3.0)
    assert high - 3.0 == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-5)  # t(0.975, 4) of the tables


def test_no_interval_for_a_lone_value_or_one_that_is_not_finite():
    assert interval([1.0]) is None
    assert interval([1.0, math.nan]) is None


@pytest.mark.parametrize("count", [3, 5, 30])
def test_the_interval_covers_the_mean_about_as_often_as_it_says(count):
    generator = np.random.default_rng(0)
    draws = 300
    covered = sum(
        low <= 0 <= high for low, high in (interval(list(generator.normal(size=count))) for _ in range(draws))
    )
    assert 0.90 <= covered / draws <= 0.99
