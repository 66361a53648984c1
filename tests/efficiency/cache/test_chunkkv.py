"""ChunkKV: whole chunks stay, chosen by the mean of the inner scores; pins act by token; a length of one is the policy itself."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.efficiency.cache.chunkkv import ChunkKV
from assay.efficiency.cache.knorm import Knorm


class Given(Policy):
    """Scores handed over by the test, by position, the same in every head."""

    def __init__(self, values, **pins) -> None:
        super().__init__(**pins)
        self.values = torch.tensor(values, dtype=torch.float64)

    def score(self, layer, store):
        return self.values[store.flat().positions.long()]


def kept_of(policy, budget, tokens=20):
    """Positions that each of two heads keeps of a store without a model, pins as the driver sets them."""
    store = fed(policy, observed(tokens))
    flat = store.flat()
    pinned = (flat.positions < policy.sink) | (flat.positions >= tokens - policy.recent)
    scores = policy.score(0, store).masked_fill(pinned, torch.inf)
    store.keep(policy.keep(0, store, scores, torch.tensor([budget, budget])))
    flat = store.flat()
    return [flat.positions[flat.owner == head].tolist() for head in (0, 1)]


def test_whole_chunks_stay_by_their_mean():
    # means of chunks of four: 0.25, 2, 0.5, 1, 3
    values = [1, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0, 1, 1, 1, 1, 3, 3, 3, 3]
    policy = ChunkKV(Given(values, sink=0, recent=0), length=4)
    assert kept_of(policy, 8) == [[4, 5, 6, 7, 16, 17, 18, 19]] * 2
    assert kept_of(policy, 12) == [[4, 5, 6, 7, *range(12, 20)]] * 2


def test_a_budget_that_ends_in_a_chunk_keeps_its_first_tokens():
    values = [0] * 8 + [5] * 4 + [3] * 4 + [1] * 4
    assert kept_of(ChunkKV(Given(values, sink=0, recent=0), length=4), 6) == [[8, 9, 10, 11, 12, 13]] * 2


def test_pinned_tokens_stay_whatever_becomes_of_their_chunk():
    values = [0] * 8 + [5] * 4 + [0] * 8
    assert kept_of(ChunkKV(Given(values, sink=1, recent=2), length=4), 7) == [[0, 8, 9, 10, 11, 18, 19]] * 2


def test_an_incomplete_last_chunk_is_judged_by_its_own_mean():
    policy = ChunkKV(Given([1] * 8 + [2, 2], sink=0, recent=0), length=4)
    assert kept_of(policy, 2, tokens=10) == [[8, 9]] * 2


def test_heads_of_a_layer_keep_the_same_chunks():
    policy = ChunkKV(Knorm(sink=0, recent=0), length=4)
    store = fed(policy, observed(40, kv_heads=3))
    scores = policy.score(0, store).view(3, 10, 4)
    norms = -store.flat().k.norm(dim=-1).view(3, 10, 4)
    torch.testing.assert_close(scores, norms.float().mean((0, 2))[None, :, None].expand(3, 10, 4))


def test_sequences_of_a_batch_choose_by_themselves():
    policy, seen = ChunkKV(Knorm(), length=5), observed(20, batch=2)
    together = policy.score(0, fed(policy, seen)).view(2, -1)
    names = ("q", "k", "v", "q_unrotated", "k_unrotated", "positions")
    for b in range(2):
        alone = dataclasses.replace(seen, **{name: getattr(seen, name)[b : b + 1] for name in names})
        torch.testing.assert_close(together[b], policy.score(0, fed(policy, alone)))


@torch.no_grad()
def test_chunks_of_one_token_of_one_head_are_the_policy_itself():
    model, tokens, kept = tiny(kv_heads=1), some_tokens(100), []
    for policy in (Knorm(), ChunkKV(Knorm(), length=1)):
        held, state = Compression(policy, "45tok"), model.start(1)
        held.attach(state)
        model(tokens, state)
        held.finish_prefill()
        kept.append([store.flat().positions.tolist() for store in state.growing().values()])
    assert kept[0] == kept[1]


def test_pins_are_taken_over_and_chunks_are_whole_numbers():
    assert ChunkKV(Knorm(sink=1, recent=9)).recent == 9
    with pytest.raises(AssayError, match="chunkkv: length=0"):
        ChunkKV(Knorm(), length=0)
