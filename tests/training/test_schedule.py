"""The learning rate warms up in a line, then falls along half a cosine to its last share."""

import pytest

from assay.training import learning_rate_at


def test_rises_peaks_and_ends_where_it_should() -> None:
    rates = [learning_rate_at(step, steps=100, peak=2.0, warmup=10, final=0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == max(rates) == pytest.approx(2.0)
    assert rates[-1] == pytest.approx(0.2)
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert rates[54] + rates[55] == pytest.approx(2.2, abs=0.02)  # half-way: half-way between peak and last


def test_no_warmup_begins_at_the_peak() -> None:
    assert learning_rate_at(0, steps=5, peak=1.0, warmup=0, final=0.0) == 1.0
