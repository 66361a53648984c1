"""Random Attention: the prompt always stays, retention is uniform, and a token survives somewhere as often as it should."""

import pytest
import torch
from scipy import stats

from assay.core.compression import Compression
from assay.core.state import AttentionState, ModelState
from assay.core.store import Store
from assay.efficiency.cache.random_attention import RandomAttention

PROMPT, END, KEPT, RECENT, HEADS = 20, 220, 70, 10, 64
TOGETHER = 4  # heads of which one must keep a token for it to survive
FREE = KEPT - PROMPT - RECENT  # kept by the draw
DRAWN = END - PROMPT - RECENT  # what it draws from


class Running:
    """A state of one layer that is fed one token after another: what generating does to a cache, without a model."""

    def __init__(self, policy: RandomAttention, *, slack: int) -> None:
        self.layer = AttentionState(1, HEADS)
        self.held = Compression(policy, f"{KEPT}tok", slack=slack).attach(ModelState([self.layer]))
        self.feed(PROMPT)
        self.held.finish_prefill()

    @property
    def store(self) -> Store:
        return self.layer.store

    def feed(self, tokens: int) -> None:
        one = torch.zeros(1, HEADS, tokens, 1)
        self.store.append(one, one, positions=self.layer.seen[:, None] + torch.arange(tokens))
        self.layer.advance(tokens, None)

    def generate(self) -> torch.Tensor:
        """Whether each position is held by each head when the last token has come."""
        while int(self.layer.seen) < END:
            self.feed(1)
            self.held.hold()
            flat = self.store.flat()
            assert (flat.owner[flat.positions < PROMPT].bincount() == PROMPT).all()
        held = torch.zeros(HEADS, END, dtype=torch.bool)
        held[self.store.flat().owner, self.store.flat().positions.long()] = True
        return held


def runs(draw: str, count: int, slack: int = 0) -> torch.Tensor:
    return torch.stack(
        [Running(RandomAttention(s, draw, sink=4, recent=RECENT), slack=slack).generate() for s in range(count)]
    )


@pytest.fixture(scope="module")
def held():
    return runs("priority", 4)


def test_the_prompt_and_the_latest_tokens_are_always_kept(held):
    assert held[:, :, :PROMPT].all() and held[:, :, -RECENT:].all()
    assert (held.sum(-1) == KEPT).all()


def test_a_token_survives_in_some_head_as_often_as_independent_draws_would_have_it(held):
    f = FREE / DRAWN
    survival = held[:, :, PROMPT:-RECENT].unflatten(1, (-1, TOGETHER)).any(2).double()
    expected = 1 - (1 - f) ** TOGETHER
    # positions of one head compete for places, which makes a run's mean vary less than independent ones would
    error = (expected * (1 - expected) / survival.numel()) ** 0.5
    assert abs(survival.mean() - expected) < 3 * error


def test_retention_is_uniform_over_generated_tokens(held):
    counts = held[:, :, PROMPT:-RECENT].sum((0, 1)).numpy()
    assert _chi_square(counts, len(held)) > 0.01


def test_fresh_draws_lose_the_oldest_tokens_first_which_is_why_they_are_not_the_default():
    counts = runs("fresh", 2).sum((0, 1))[PROMPT:-RECENT].numpy()
    assert _chi_square(counts, 2) < 1e-6
    assert counts[: DRAWN // 2].sum() < 0.2 * counts.sum()


def _chi_square(counts, samples: int) -> float:
    """p-value of equal retention; each head keeps FREE of DRAWN without replacement, which shrinks the variance."""
    expected = samples * HEADS * FREE / DRAWN
    shrunk = 1 - FREE / DRAWN
    return float(stats.chi2.sf(((counts - expected) ** 2).sum() / expected / shrunk * (DRAWN - 1) / DRAWN, DRAWN - 1))


def test_slack_does_not_spoil_uniformity():
    counts = runs("priority", 2, slack=16).sum((0, 1))[PROMPT:-RECENT].double()
    first, second = counts[: DRAWN // 2].mean(), counts[DRAWN // 2 :].mean()
    assert abs(first - second) < 4 * (counts.var() / (DRAWN / 4)) ** 0.5
