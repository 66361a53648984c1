"""Expected attention against its formula, against drawn queries, over pieces and padding, with and without rotation."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache.expected_attention import ExpectedAttention
from assay.parts.positions.rope import Rope


def turned(seen):
    """The same, rotated by rope with a dimension of 8."""
    rope = Rope(8, theta=50.0)

    def turn(x, positions):
        return rope.rotate(x, x, positions)[0]

    return dataclasses.replace(seen, turn=turn)


def explicit(policy, seen, head):
    """The formula written out for one query head of the first sequence: positions behind the sinks."""
    kv_head = head // (seen.q.shape[1] // seen.k.shape[1])
    queries = seen.q_unrotated[0, head, policy.sink :]
    mean = queries.mean(0)
    covariance = (queries - mean).T @ (queries - mean) / len(queries)
    rotation = torch.eye(8, dtype=torch.float64)
    if seen.turn is not None:
        at = torch.arange(seen.q.shape[2], seen.q.shape[2] + policy.future)
        columns = [seen.turn(unit.expand(1, 1, len(at), 8), at[None]).mean(2)[0, 0] for unit in rotation]
        rotation = torch.stack(columns, 1)
    mean, covariance = rotation @ mean, rotation @ covariance @ rotation.T
    keys = seen.k[0, kv_head, policy.sink :]
    z = seen.scale * keys @ mean
    if policy.covariance:
        z = z + seen.scale**2 / 2 * torch.stack([k @ covariance @ k for k in keys])
    return z.softmax(0)


@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("rotated", [True, False])
def test_scores_equal_the_formula(rotated, covariance):
    seen = observed(40, kv_heads=2, group=3)
    seen = turned(seen) if rotated else seen
    policy = ExpectedAttention(future=20, epsilon=0.01, covariance=covariance, sink=3)
    scores = policy.score(0, fed(policy, seen)).view(2, 40)
    for kv_head in range(2):
        share = torch.stack([explicit(policy, seen, 3 * kv_head + g) for g in range(3)]).mean(0)
        wanted = (share + 0.01) * seen.v[0, kv_head, 3:].norm(dim=-1)
        torch.testing.assert_close(scores[kv_head, 3:], wanted)
        assert torch.equal(scores[kv_head, :3], scores[kv_head, 3:].max().expand(3))


def test_it_is_the_mean_of_the_exponential_score_over_normal_queries():
    """Without rotation z is E exp(scale q.k) for q drawn from the normal distribution with the queries' mean and covariance."""
    seen = observed(12, kv_heads=1, group=1)
    policy = ExpectedAttention(sink=0)
    scores = policy.score(0, fed(policy, seen)) / seen.v[0, 0].norm(dim=-1)
    queries = seen.q_unrotated[0, 0]
    normal = torch.distributions.MultivariateNormal(queries.mean(0), queries.T.cov(correction=0) + 1e-9 * torch.eye(8))
    torch.manual_seed(0)
    drawn = (normal.sample((400_000,)) @ seen.k[0, 0].T * seen.scale).exp().mean(0)
    torch.testing.assert_close(scores, drawn / drawn.sum(), rtol=0.03, atol=0)


def test_pieces_padding_and_batches_make_no_difference():
    seen = turned(observed(30, batch=2))
    valid = torch.arange(30) >= torch.tensor([[0], [12]])
    at = (valid.cumsum(1) - 1).clamp(min=0)
    policy = ExpectedAttention(future=7)
    together, store = dataclasses.replace(seen, valid=valid, positions=at), None
    for begin, end in ((0, 11), (11, 12), (12, 30)):
        names = ("q", "k", "v", "q_unrotated", "k_unrotated")
        parts = {n: getattr(together, n)[:, :, begin:end] for n in names}
        cut = {"valid": valid[:, begin:end], "positions": at[:, begin:end]}
        store = fed(policy, dataclasses.replace(together, **parts, **cut), store)
    scores, owner = policy.score(0, store), store.flat().owner
    for b, begin in enumerate((0, 12)):
        parts = {n: getattr(seen, n)[b : b + 1, :, begin:] for n in ("q", "k", "v", "q_unrotated", "k_unrotated")}
        single = dataclasses.replace(seen, positions=torch.arange(30 - begin)[None], **parts)
        alone = ExpectedAttention(future=7)
        torch.testing.assert_close(scores[owner // 2 == b], alone.score(0, fed(alone, single)))


def test_without_a_spread_of_queries_the_covariance_makes_no_difference():
    seen = observed(20)
    seen = dataclasses.replace(seen, q_unrotated=seen.q_unrotated[:, :, :1].expand(-1, -1, 20, -1))
    policies = [ExpectedAttention(covariance=c) for c in (True, False)]
    torch.testing.assert_close(*[policy.score(0, fed(policy, seen)) for policy in policies])


def test_nothing_but_sinks_gives_finite_scores():
    policy = ExpectedAttention(sink=10)
    assert policy.score(0, fed(policy, observed(5))).isfinite().all()


@torch.no_grad()
def test_a_models_layers_hand_over_how_they_rotate():
    model, tokens = tiny(), some_tokens(60)
    held, state = Compression(ExpectedAttention(sink=2, recent=4, future=16), 0.5), model.start(1)
    held.attach(state)
    model(tokens, state)
    store, turn = state.layers[0].store, held.policy.layers[0][1]
    mixer, x = model.blocks[0].mixer, torch.randn(1, 4, 5, 8, dtype=torch.float64)
    at = torch.arange(40, 45)[None]
    torch.testing.assert_close(turn(x, at), mixer.position.rotate(x, x, at)[0])
    scores = held.policy.score(0, store)
    held.policy.layers[0] = held.policy.layers[0][0], None
    assert not torch.allclose(scores, held.policy.score(0, store))
    assert tiny(rope=False).blocks[0].mixer._turn() is None


def test_what_it_remembers_counts_as_bytes():
    model, tokens, notes = tiny(), some_tokens(60), {}
    for covariance in (True, False):
        held, state = Compression(ExpectedAttention(covariance=covariance), 0.8), model.start(1)
        held.attach(state)
        with torch.no_grad():
            model(tokens, state)
        notes[covariance] = sum(t.untyped_storage().nbytes() for t in state.layers[0].store.notes.values())
    assert notes == {True: 8 * (1 + 4 * 8 + 4 * 8 * 8), False: 8 * (1 + 4 * 8)}
    one = tiny(kv_heads=1).start(1)
    assert "weigh as much" in ExpectedAttention().explain(one)
    assert ExpectedAttention(covariance=False).explain(one) is None


def test_bad_input():
    with pytest.raises(AssayError, match="epsilon=-1"):
        ExpectedAttention(epsilon=-1)
    with pytest.raises(AssayError, match="future=0"):
        ExpectedAttention(future=0)
    with pytest.raises(AssayError, match="attach it before"):
        ExpectedAttention().score(0, fed(ExpectedAttention(), observed(4)))
