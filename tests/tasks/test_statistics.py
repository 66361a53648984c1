import numpy as np
import pytest
from scipy import stats

from assay.core.errors import AssayError
from assay.tasks.statistics import (
    bootstrap_mean,
    chi_square_uniform,
    distinguishable,
    mean_interval,
    paired_bootstrap,
    sign_flip_test,
    spearman,
    wilson_interval,
)

RNG = np.random.default_rng(5)


def test_student_interval_equals_scipy():
    x = RNG.normal(2, 3, 7)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.9)
    found = mean_interval(x, 0.9)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert np.isnan(mean_interval([1.0]).low) and mean_interval([1.0]).value == 1


def test_bootstrap_interval_is_near_the_normal_one_and_seeded():
    x = RNG.normal(1, 2, 400)
    found = bootstrap_mean(x)
    half = 1.96 * x.std() / 20
    assert (found.low, found.high) == pytest.approx((x.mean() - half, x.mean() + half), abs=0.15 * half)
    assert bootstrap_mean(x) == found != bootstrap_mean(x, seed=1)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(0.3, 1, (300, 40))
    hits = [found.low <= 0.3 <= found.high for found in (bootstrap_mean(x, resamples=1000) for x in draws)]
    assert 0.88 < np.mean(hits) < 0.98


def test_pairing_matters():
    base = RNG.normal(0, 10, 50)
    better = base + 0.5 + RNG.normal(0, 0.1, 50)
    assert paired_bootstrap(better, base).excludes_zero
    assert not paired_bootstrap(better, RNG.permutation(base)).excludes_zero


def test_sign_flips_are_exact_for_few_pairs():
    assert sign_flip_test([1, 1, 1, 1, 1], [0] * 5) == 2 / 32
    assert sign_flip_test([1, 1, 1, 1, 1, 0], [0] * 6) == 2 / 32
    assert sign_flip_test([3, 3], [3, 3]) == 1
    x, y = RNG.normal(0.4, 1, 12), np.zeros(12)
    statistic = lambda d: np.abs(d.mean())  # noqa: E731
    expected = stats.permutation_test(
        (x,), statistic, permutation_type="samples", alternative="greater", n_resamples=5000
    )
    assert sign_flip_test(x, y) == pytest.approx(expected.pvalue)


def test_sampled_sign_flips_agree_with_exact_ones():
    d = RNG.normal(0.3, 1, 16)
    more = np.concatenate([d, [1e-9]])  # one more pair, of no weight: sampled instead of counted
    assert sign_flip_test(more, np.zeros(17)) == pytest.approx(sign_flip_test(d, np.zeros(16)), abs=0.02)


def test_equal_arms_are_rarely_told_apart_and_different_ones_are():
    rng = np.random.default_rng(1)
    same = [distinguishable(*(rng.random((2, 20)) < 0.5).astype(float)) for _ in range(200)]
    assert np.mean(same) < 0.08
    assert distinguishable([1] * 20, [1] * 10 + [0] * 10)
    assert not distinguishable([1] * 20, [1] * 20)
    assert not distinguishable([1] * 5, [0] * 5)  # five pairs are too few, however clear they look
    assert distinguishable([1] * 6, [0] * 6)


@pytest.mark.parametrize("successes, n", [(0, 10), (10, 10), (3, 20), (19, 20)])
def test_wilson_equals_scipy(successes, n):
    expected = stats.binomtest(successes, n).proportion_ci(method="wilson")
    found = wilson_interval(successes, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_uniform_counts_pass_and_skewed_ones_do_not():
    rng = np.random.default_rng(2)
    ps = [chi_square_uniform(np.bincount(rng.integers(0, 8, 400), minlength=8))[1] for _ in range(200)]
    assert 0.3 < np.mean(ps) < 0.7 and np.mean(np.array(ps) < 0.05) < 0.1
    assert chi_square_uniform([100, 40, 60, 50])[1] < 1e-4
    with pytest.raises(AssayError, match="5 expected"):
        chi_square_uniform([1, 2, 3])


def test_spearman_equals_scipy_also_with_ties():
    x = RNG.integers(0, 6, 80)
    y = x + RNG.normal(0, 2, 80)
    found = spearman(x, y)
    assert found.value == pytest.approx(stats.spearmanr(x, y).statistic)
    assert found.low < found.value < found.high and found.excludes_zero
    assert not spearman(x, RNG.normal(size=80)).excludes_zero
    assert np.isnan(spearman([1, 1, 1, 1], [1, 2, 3, 4]).value)


def test_bad_numbers_are_named():
    with pytest.raises(AssayError, match="do not pair up"):
        paired_bootstrap([1, 2], [1])
    with pytest.raises(AssayError, match="finite"):
        bootstrap_mean([1, float("nan")])
    with pytest.raises(AssayError, match="finite"):
        bootstrap_mean([])
    with pytest.raises(AssayError, match="confidence"):
        bootstrap_mean([1, 2], confidence=95)
    with pytest.raises(AssayError, match="successes"):
        wilson_interval(5, 4)


def test_an_interval_reads_as_one():
    assert str(wilson_interval(10, 20)) == "0.5 [0.299, 0.701]"
