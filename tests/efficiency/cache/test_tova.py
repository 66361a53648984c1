"""TOVA against an explicit attention row of the last query; one choice for all heads; what it holds."""

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache.snapkv import SnapKV
from assay.efficiency.cache.tova import TOVA


def explicit(seen):
    """Attention of the last query to every token, averaged over all query heads, sequence by sequence."""
    group = seen.q.shape[1] // seen.k.shape[1]
    scores = torch.einsum("bhd,bhsd->bhs", seen.q[:, :, -1], seen.k.repeat_interleave(group, 1)) * seen.scale
    return scores.softmax(-1).mean(1)


def test_the_score_is_the_last_querys_attention_averaged_over_all_heads():
    policy, seen = TOVA(), observed(40, batch=2, kv_heads=3, group=2)
    scores = policy.score(0, fed(policy, seen)).view(2, 3, 40)
    torch.testing.assert_close(scores, explicit(seen)[:, None].expand(2, 3, 40))
    assert all(torch.equal(scores[:, 0], scores[:, head]) for head in (1, 2))


def test_with_one_head_it_is_snapkv_of_one_query_without_pooling():
    tova, snap, seen = TOVA(), SnapKV(window=1, kernel=1), observed(40, kv_heads=1, group=3)
    ours, theirs = tova.score(0, fed(tova, seen)), snap.score(0, fed(snap, seen))
    torch.testing.assert_close(ours[:-1], theirs[:-1])


def test_heads_that_lost_a_token_give_it_nothing():
    policy, seen = TOVA(), observed(20, kv_heads=2, group=1)
    store = fed(policy, seen)
    store.keep(torch.cat([torch.arange(20), torch.arange(30, 40)]))
    scores, flat = policy.score(0, store), store.flat()
    rows = [seen.q[0, h, -1] @ seen.k[0, h].T * seen.scale for h in (0, 1)]
    whole, half = rows[0].softmax(0), rows[1][10:].softmax(0)
    wanted = torch.cat([whole[:10] / 2, (whole[10:] + half) / 2])
    torch.testing.assert_close(scores, wanted[flat.positions.long()])


def test_with_no_slack_the_least_attended_token_goes_at_each_step():
    model, tokens = tiny(windows=(None,), kv_heads=1), some_tokens(40)
    held, state = Compression(TOVA(sink=0, recent=1), "12tok", slack=0), model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(tokens[:, :20], state)
        held.finish_prefill()
        for t in range(20, 40):
            model(tokens[:, t : t + 1], state)
            scores, flat = held.policy.score(0, state.layers[0].store), state.layers[0].store.flat()
            lowest = int(flat.positions[:-1][scores[:-1].argmin()])
            before = set(flat.positions.tolist())
            held.hold()
            assert before - set(state.layers[0].store.flat().positions.tolist()) == {lowest}


def test_one_query_a_head_is_held():
    policy, seen = TOVA(), observed(30, batch=2)
    store = fed(policy, seen)
    assert store.notes[policy.named("queries")].shape == (2, 1, 4, 8)
    assert torch.equal(store.notes[policy.named("queries")][:, 0], seen.q[:, :, -1])


def test_bad_input():
    with pytest.raises(AssayError, match="tova has not seen"):
        TOVA().score(0, fed(TOVA(), observed(4)))
