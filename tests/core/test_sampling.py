"""Truncations keep what they say, the most likely token always, and what is drawn follows the distribution."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.sampling import choose, truncate

ROWS = st.lists(st.floats(-8, 8), min_size=2, max_size=12, unique=True)


def kept_of(row, **options):
    logits = torch.tensor([row], dtype=torch.float64)
    cut = truncate(logits, **{"top_k": 0, "top_p": 1.0, "min_p": 0.0} | options)
    kept = cut[0] > -torch.inf
    assert torch.equal(cut[0][kept], logits[0][kept]), "what stays is unchanged"
    assert kept[logits[0].argmax()], "the most likely token always stays"
    assert logits[0][kept].min() > logits[0][~kept].max() if (~kept).any() else True, "the most likely ones stay"
    return kept, logits[0].softmax(-1)


@given(ROWS)
def test_nothing_asked_nothing_cut(row):
    assert kept_of(row)[0].all()


@given(ROWS, st.integers(1, 20))
def test_top_k_keeps_k(row, k):
    assert kept_of(row, top_k=k)[0].sum() == min(k, len(row))


@given(ROWS, st.floats(0, 0.999))
def test_top_p_keeps_the_smallest_set_with_that_probability(row, p):
    kept, probability = kept_of(row, top_p=p)
    total = probability[kept].sum()
    assert total >= p - 1e-12
    if kept.sum() > 1:
        assert total - probability[kept].min() < p + 1e-12, "without its least likely member it would not reach p"


@given(ROWS, st.floats(0.001, 1))
def test_min_p_keeps_those_with_that_share_of_the_best(row, p):
    kept, probability = kept_of(row, min_p=p)
    clear = (probability / probability.max() - p).abs() > 1e-9
    assert torch.equal(kept[clear], (probability >= p * probability.max())[clear])


@given(ROWS, st.integers(1, 6), st.floats(0.1, 0.99), st.floats(0.01, 0.5))
def test_truncations_follow_one_another(row, k, p, least):
    together, _ = kept_of(row, top_k=k, top_p=p, min_p=least)
    alone = kept_of(row, top_k=k)[0] & kept_of(row, min_p=least)[0]
    assert (together <= alone).all()


def test_rows_are_cut_each_by_itself():
    logits = torch.tensor([[0.0, 1.0, 2.0, 9.0], [5.0, 4.9, 4.8, -9.0]])
    cut = truncate(logits, top_k=0, top_p=0.9, min_p=0.0)
    assert (cut > -torch.inf).tolist() == [[False, False, False, True], [True, True, True, False]]


def test_greedy_takes_the_highest_whatever_the_rest_says():
    logits, generator = torch.tensor([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0]]), torch.Generator()
    assert choose(logits, temperature=0, top_k=0, top_p=1, min_p=0, generator=generator).tolist() == [1, 0]
    assert choose(logits, temperature=5, top_k=1, top_p=1, min_p=0, generator=generator).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    drawn = choose(
        logits.expand(20_000, 4),
        temperature=temperature,
        top_k=3,
        top_p=1.0,
        min_p=0.0,
        generator=torch.Generator().manual_seed(0),
    )
    wanted = torch.cat([(logits[:3] / temperature).softmax(-1), torch.zeros(1)])
    share = torch.bincount(drawn, minlength=4) / 20_000
    assert (share - wanted).abs().max() < 4 * (0.25 / 20_000) ** 0.5
    assert share[3] == 0
