"""What a few measurements allow to be said: intervals, tests, and whether two arms can be told apart.

All is seeded and vectorised. Intervals are two-sided; `confidence` is a share. Resampling: Efron & Tibshirani 1993;
sign flips: Fisher 1935; intervals of a share: Wilson 1927.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from assay.core.errors import AssayError

Numbers = Sequence[float] | np.ndarray
_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds between which it lies at some confidence, from `n` measurements.

    Unknown bounds are nan.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def mean_interval(values: Numbers, confidence: float = 0.95) -> Interval:
    """Mean with Student's t interval, for a few seeds whose values are themselves means; one alone has nan bounds."""
    from scipy.stats import t  # a third of a second, for those who need it

    x = _numbers(values)
    if len(x) < 2:
        return Interval(float(x.mean()), np.nan, np.nan, len(x))
    half = t.ppf((1 + confidence) / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half), len(x))


def bootstrap_mean(values: Numbers, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Mean with a percentile bootstrap interval."""
    x = _numbers(values)
    low, high = _bounds(_resampled_means(x, resamples, seed), confidence)
    return Interval(float(x.mean()), low, high, len(x))


def paired_bootstrap(
    a: Numbers, b: Numbers, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean of a - b with a percentile bootstrap interval over the pairs.

    Raises AssayError where they do not pair up.
    """
    return bootstrap_mean(_differences(a, b), confidence=confidence, resamples=resamples, seed=seed)


def sign_flip_test(a: Numbers, b: Numbers, *, resamples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p of the mean of a - b under random signs of the differences.

    Exact up to 16 pairs that differ, else by sampling.
    """
    d = _differences(a, b)
    d = d[d != 0]
    if not len(d):
        return 1.0
    reach = abs(d.sum()) * (1 - 1e-12)
    if len(d) <= 16:
        signs = 1 - 2 * (np.arange(2 ** len(d))[:, None] >> np.arange(len(d)) & 1)
        return float((np.abs(signs @ d) >= reach).mean())
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // len(d))
    sums = np.concatenate(
        [
            (1 - 2 * rng.integers(0, 2, (min(rows, resamples - done), len(d)), dtype=np.int8)) @ d
            for done in range(0, resamples, rows)
        ]
    )
    return float((1 + (np.abs(sums) >= reach).sum()) / (1 + resamples))


def distinguishable(a: Numbers, b: Numbers, *, confidence: float = 0.95, seed: int = 0) -> bool:
    """Whether paired measurements tell a and b apart.

    They do where the bootstrap interval of their difference excludes 0 and a sign-flip test agrees. The test guards
    small samples, where a bootstrap of equal differences has no width: fewer than six pairs never tell apart at 0.95.
    """
    return (
        paired_bootstrap(a, b, confidence=confidence, seed=seed).excludes_zero
        and sign_flip_test(a, b, seed=seed) <= 1 - confidence
    )


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """A share of successes with Wilson's interval, which stays in [0, 1]."""
    from scipy.stats import norm

    if n < 1 or not 0 <= successes <= n:
        raise AssayError(f"{successes} successes of {n}: at least one trial, and no more successes than trials")
    z, share = norm.ppf((1 + confidence) / 2), successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(
        share, 0.0 if successes == 0 else float(centre - half), 1.0 if successes == n else float(centre + half), n
    )


def chi_square_uniform(counts: Numbers) -> tuple[float, float]:
    """Pearson's statistic and p of counts against equal expectation.

    Raises AssayError where less than 5 a cell are expected.
    """
    from scipy.stats import chisquare

    x = _numbers(counts)
    if len(x) < 2 or x.mean() < 5:
        raise AssayError(f"{x.sum():g} counts in {len(x)} cells: at least two cells and 5 expected in each are needed")
    found = chisquare(x)
    return float(found.statistic), float(found.pvalue)


def spearman(x: Numbers, y: Numbers, *, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0) -> Interval:
    """Spearman's rank correlation with a percentile bootstrap interval over the pairs; nan where either is constant."""
    from scipy.stats import rankdata

    a, b = _numbers(x), _numbers(y)
    if len(a) != len(b) or len(a) < 3:
        raise AssayError(f"{len(a)} and {len(b)} values: at least three pairs are needed")
    value = float(_correlation(rankdata(a)[None], rankdata(b)[None])[0])
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // len(a))
    drawn = []
    for done in range(0, resamples, rows):
        take = rng.integers(0, len(a), (min(rows, resamples - done), len(a)))
        drawn.append(_correlation(rankdata(a[take], axis=1), rankdata(b[take], axis=1)))
    low, high = _bounds(np.concatenate(drawn), confidence)
    return Interval(value, low, high, len(a))


def _correlation(a: Float[np.ndarray, "rows n"], b: Float[np.ndarray, "rows n"]) -> Float[np.ndarray, "rows"]:
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    return np.divide((a * b).sum(axis=1), scale, out=np.full(len(a), np.nan), where=scale > 0)


def _resampled_means(x: Float[np.ndarray, "n"], resamples: int, seed: int) -> Float[np.ndarray, "resamples"]:
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // len(x))
    return np.concatenate(
        [
            x[rng.integers(0, len(x), (min(rows, resamples - done), len(x)))].mean(axis=1)
            for done in range(0, resamples, rows)
        ]
    )


def _bounds(drawn: Float[np.ndarray, "resamples"], confidence: float) -> tuple[float, float]:
    if not 0 < confidence < 1:
        raise AssayError(f"confidence={confidence}: a share between 0 and 1 is needed")
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return np.nan, np.nan
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _differences(a: Numbers, b: Numbers) -> Float[np.ndarray, "n"]:
    x, y = _numbers(a), _numbers(b)
    if len(x) != len(y):
        raise AssayError(f"{len(x)} and {len(y)} measurements do not pair up")
    return x - y


def _numbers(values: Numbers) -> Float[np.ndarray, "n"]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise AssayError("a list of at least one finite number is needed")
    return x
