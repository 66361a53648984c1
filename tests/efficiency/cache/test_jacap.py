"""Jacap: its Jacobian against autograd, its scores written out token by token, what does not matter to it."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache import jacap
from assay.efficiency.cache.jacap import Jacap, jacobian


def naive(seen, window, ridge, values=False):
    """Query by query with a full square root of the covariance, for the first sequence."""
    heads, tokens, dim = seen.q.shape[1:]
    kv_heads = seen.k.shape[1]
    group, found = heads // kv_heads, torch.zeros(kv_heads, tokens, dtype=torch.float64)
    for kv in range(kv_heads):
        k, v = seen.k[0, kv], seen.v[0, kv]
        asking = seen.q[0, kv * group : (kv + 1) * group, tokens - window :].reshape(-1, dim)
        values_, vectors = torch.linalg.eigh(torch.cov(asking.T, correction=0))
        root = vectors @ values_.clamp(min=0).sqrt().diag() @ vectors.T
        for row, q in enumerate(asking):
            t = tokens - window + row % window
            p = torch.zeros(tokens, dtype=torch.float64)
            p[: t + 1] = (k[: t + 1] @ q * seen.scale).softmax(0)
            w = p * (1 - p) * ((v - p @ v).norm(dim=1) if values else 1)
            near = (k - p @ k) @ root
            m = near.T @ (w[:, None] * near)
            inverse = (m + ridge * m.trace() / dim * torch.eye(dim)).inverse()
            found[kv] += w * torch.einsum("ti,ij,tj->t", near, inverse, near) / len(asking)
    return found.flatten()


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("at_a_time", [2**23, 1])
def test_scores_equal_a_naive_reference(values, at_a_time, monkeypatch):
    monkeypatch.setattr(jacap, "SCORES", at_a_time)
    seen = observed(30, group=3)
    policy = Jacap(window=5, ridge=0.02, values=values)
    torch.testing.assert_close(policy.score(0, fed(policy, seen)), naive(seen, 5, 0.02, values))


def test_fewer_queries_than_dimensions_make_no_difference():
    """The covariance then has no full rank, and only as many dimensions are computed."""
    seen = observed(30, group=1)
    policy = Jacap(window=3)
    torch.testing.assert_close(policy.score(0, fed(policy, seen)), naive(seen, 3, 0.01))


def test_the_jacobian_is_that_of_autograd():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((8,), (40, 8), (40, 6)))

    def output(query):
        return (k @ query * 0.3).softmax(0) @ v

    torch.testing.assert_close(
        jacobian(q, k, v, 0.3), torch.autograd.functional.jacobian(output, q), rtol=0, atol=1e-12
    )


def test_moving_all_keys_and_scaling_all_queries_of_flat_attention_change_no_score():
    """Scores look at keys about their mean and at covariance up to its size."""
    seen = observed(30)
    policy = Jacap(window=4)
    wanted = policy.score(0, fed(policy, seen))
    moved = dataclasses.replace(seen, k=seen.k + 3.0)
    torch.testing.assert_close(policy.score(0, fed(policy, moved)), wanted)
    bigger = dataclasses.replace(seen, q=seen.q * 5, scale=seen.scale / 5)
    torch.testing.assert_close(policy.score(0, fed(policy, bigger)), wanted)


def test_a_token_that_no_query_reads_tells_nothing():
    seen = observed(20, kv_heads=1, group=1)
    seen.q[..., 0], seen.k[0, 0, :, 0] = 50.0, 0.0
    seen.k[0, 0, 7, 0] = -50.0
    policy = Jacap(window=4)
    scores = policy.score(0, fed(policy, seen))
    assert float(scores[7]) < 1e-12 < float(scores.median())


def test_the_last_valid_queries_count_wherever_the_padding_stands():
    seen = observed(30, batch=2)
    valid = torch.ones(2, 30, dtype=torch.bool)
    valid[1, :10] = False
    at = (valid.cumsum(1) - 1).clamp(min=0)
    policy = Jacap(window=5)
    together = policy.score(0, fed(policy, dataclasses.replace(seen, valid=valid, positions=at)))
    alone = []
    for b in range(2):
        parts = {n: getattr(seen, n)[b : b + 1, :, valid[b]] for n in ("q", "k", "v", "q_unrotated", "k_unrotated")}
        single = dataclasses.replace(seen, positions=torch.arange(int(valid[b].sum()))[None], **parts)
        one = Jacap(window=5)
        alone.append(one.score(0, fed(one, single)))
    torch.testing.assert_close(together, torch.cat(alone))


def test_it_goes_on_while_generating_by_the_most_recent_queries():
    model, tokens = tiny(softcap=3.0), some_tokens(110)
    held = Compression(Jacap(window=6, sink=1, recent=4), 0.4)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(tokens[:, :90], state)
        held.finish_prefill()
        for t in range(90, 110):
            assert bool(model(tokens[:, t : t + 1], state)[0].isfinite().all())
            held.hold()
    store = state.layers[0].store
    assert sorted(held.policy.queries.held(0, store).positions[0].tolist()) == list(range(104, 110))


def test_bad_input():
    with pytest.raises(AssayError, match="ridge=0 must be positive"):
        Jacap(ridge=0)
    with pytest.raises(AssayError, match="window=0"):
        Jacap(window=0)
    with pytest.raises(AssayError, match="attach it before"):
        Jacap().score(0, fed(Jacap(), observed(4)))
