"""InertiaKV: the average written out step by step, its limits, what Lazy and score-free leave out, its scorers."""

import dataclasses

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed, order

from assay.core.build import build
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.store import Store
from assay.efficiency.cache import inertiakv
from assay.efficiency.cache.h2o import H2O
from assay.efficiency.cache.inertiakv import InertiaKV, learned, telling
from assay.efficiency.cache.keydiff import KeyDiff
from assay.efficiency.cache.knorm import Knorm


def piece(seen, begin: int, end: int):
    parts = {n: getattr(seen, n)[:, :, begin:end] for n in ("q", "k", "v", "q_unrotated", "k_unrotated")}
    return dataclasses.replace(seen, positions=seen.positions[:, begin:end], **parts)


def rows(seen) -> torch.Tensor:
    """The causal attention matrix of every query head of the first sequence: heads, queries, keys."""
    heads, tokens = seen.q.shape[1:3]
    k = seen.k[0].repeat_interleave(heads // seen.k.shape[1], 0)
    scores = (seen.q[0] @ k.mT * seen.scale).masked_fill(~torch.ones(tokens, tokens).tril().bool(), -torch.inf)
    return scores.softmax(-1)


def averaged(seen, prefilled: int, beta: float, counts, start: str = "mean") -> torch.Tensor:
    """One step after another, for the tokens after the context; `counts(step)` says whether a generated one counts."""
    pattern = rows(seen).unflatten(0, (seen.k.shape[1], -1)).mean(1)
    heads, tokens, _ = pattern.shape
    s, number = torch.zeros(heads, tokens, dtype=torch.float64), 0
    for t in range(tokens):
        if t >= prefilled and start == "mean":
            s[:, t] = s[:, :t].mean(1)
        if t < prefilled or counts(t - prefilled):
            s[:, : t + 1] = beta * s[:, : t + 1] + (1 - beta) * pattern[:, t, : t + 1]
            number += 1
    return (s / (1 - beta**number)).flatten()


def generated(policy: InertiaKV, seen, prefilled: int) -> Store:
    store = fed(policy, piece(seen, 0, prefilled))
    policy.finish_prefill(0, store)
    for t in range(prefilled, seen.q.shape[2]):
        fed(policy, piece(seen, t, t + 1), store)
    return store


@pytest.mark.parametrize("start", ["mean", "zero"])
@pytest.mark.parametrize("refresh", [1, 4])
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_scores_equal_the_average_written_out_step_by_step(beta, refresh, start):
    seen = observed(42, group=3)
    policy = InertiaKV(beta, refresh=refresh, start=start)
    store = generated(policy, seen, 30)
    wanted = averaged(seen, 30, beta, lambda step: step % refresh == 0, start)
    torch.testing.assert_close(policy.score(0, store), wanted)
    assert policy.scored == 30 + -(-12 // refresh)


def test_score_free_counts_the_first_generated_step_and_no_other():
    seen = observed(40)
    policy = InertiaKV(frozen=True)
    store = generated(policy, seen, 30)
    torch.testing.assert_close(policy.score(0, store), averaged(seen, 30, 0.9, lambda step: step == 0))
    assert policy.scored == 31
    fed(policy, dataclasses.replace(observed(5, seed=7), positions=torch.arange(40, 45)[None]), store)
    before = averaged(seen, 30, 0.9, lambda step: step == 0).view(2, 40)
    torch.testing.assert_close(policy.score(0, store).view(2, 45)[:, :40], before)


def test_a_beta_of_zero_is_the_last_steps_attention():
    seen = observed(30)
    policy = InertiaKV(0.0)
    pattern = rows(seen).unflatten(0, (2, -1)).mean(1)
    torch.testing.assert_close(policy.score(0, fed(policy, seen)), pattern[:, -1].flatten())


def test_towards_a_beta_of_one_it_is_the_cumulative_average_of_h2o():
    seen = observed(45, group=2)
    policy, h2o = InertiaKV(1 - 1e-9, start="zero"), H2O()
    store, other = generated(policy, seen, 30), fed(h2o, seen)
    torch.testing.assert_close(policy.score(0, store), h2o.score(0, other) / 45, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scorer", ["attention", "value", "entropy"])
def test_a_context_in_pieces_is_as_one(scorer):
    seen = observed(40)
    policy, whole = InertiaKV(scorer=scorer), InertiaKV(scorer=scorer)
    store = None
    for begin, end in ((0, 13), (13, 14), (14, 40)):
        store = fed(policy, piece(seen, begin, end), store)
    torch.testing.assert_close(policy.score(0, store), whole.score(0, fed(whole, seen)))


def test_blocks_of_queries_make_no_difference(monkeypatch):
    seen = observed(40)
    policy = InertiaKV(scorer="entropy")
    wanted = policy.score(0, fed(policy, seen))
    monkeypatch.setattr(inertiakv, "SCORES", 1)
    again = InertiaKV(scorer="entropy")
    torch.testing.assert_close(again.score(0, fed(again, seen)), wanted)


def test_padding_neither_counts_nor_receives():
    seen, more = observed(30, batch=2), observed(6, batch=2, seed=4)
    valid = torch.arange(30) >= torch.tensor([[0], [12]])
    at = (valid.cumsum(1) - 1).clamp(min=0)
    policy = InertiaKV(refresh=2)
    store = fed(policy, dataclasses.replace(seen, valid=valid, positions=at))
    policy.finish_prefill(0, store)
    there = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    fed(policy, dataclasses.replace(more, valid=there, positions=at[:, -1:] + there.cumsum(1)), store)
    alone = []
    for b in range(2):
        one = InertiaKV(refresh=2)
        pieces = []
        for part, which in ((seen, valid[b]), (more, there[b])):
            names = ("q", "k", "v", "q_unrotated", "k_unrotated")
            first = 0 if part is seen else int(valid[b].sum())
            pieces.append(
                dataclasses.replace(
                    part,
                    positions=first + torch.arange(int(which.sum()))[None],
                    **{n: getattr(part, n)[b : b + 1, :, which] for n in names},
                )
            )
        single = fed(one, pieces[0])
        one.finish_prefill(0, single)
        fed(one, pieces[1], single)
        alone.append(one.score(0, single))
    torch.testing.assert_close(policy.score(0, store), torch.cat(alone))


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_scaling_all_attention_never_changes_a_kept_set(scale, monkeypatch):
    """A positive weight of a layer, say."""
    seen, kept = observed(60), []
    received = InertiaKV._received
    for factor in (1.0, scale):
        monkeypatch.setattr(InertiaKV, "_received", lambda *given, factor=factor: factor * received(*given))
        policy = InertiaKV()
        store = generated(policy, seen, 50)
        kept.append(policy.keep(0, store, policy.score(0, store), torch.tensor([20, 20])).tolist())
    assert kept[0] == kept[1]


def test_every_sixteenth_step_of_a_running_model_is_scored():
    model, tokens = tiny(), some_tokens(160)
    calls = {}
    for refresh in (1, 16):
        state = model.start(1)
        held = Compression(InertiaKV(refresh=refresh, sink=2, recent=8), "50tok").attach(state)
        with torch.no_grad():
            model(tokens[:, :96], state)
            held.finish_prefill()
            before = held.policy.scored
            for t in range(96, 160):
                model(tokens[:, t : t + 1], state)
                held.hold()
        calls[refresh] = held.policy.scored - before
    assert calls == {1: 2 * 64, 16: 2 * 4}


def test_scorers_that_know_no_queries_are_those_policies():
    seen = observed(40)
    for scorer, policy in (("knorm", Knorm()), ("keydiff", KeyDiff())):
        mine = InertiaKV(scorer=scorer)
        store = fed(mine, seen)
        assert not store.remembered()
        torch.testing.assert_close(mine.score(0, store), policy.score(0, store), check_dtype=False)
    recency = InertiaKV(scorer="recency")
    assert order(recency.score(0, fed(recency, observed(9, kv_heads=1)))) == list(range(8, -1, -1))


def test_value_norms_and_entropy_weigh_attention():
    seen = observed(30, group=1)
    plain, value, entropy = (InertiaKV(0.0, scorer=s) for s in ("attention", "value", "entropy"))
    attention = plain.score(0, fed(plain, seen))
    torch.testing.assert_close(value.score(0, fed(value, seen)), attention * seen.v[0].norm(dim=-1).flatten())
    last = rows(seen)[:, -1]
    weight = 1 - torch.special.entr(last).sum(-1) / torch.tensor(30.0).log()
    torch.testing.assert_close(entropy.score(0, fed(entropy, seen)), (last * weight[:, None]).flatten())
    assert telling(torch.tensor([[1.0, 0, 0], [1 / 3] * 3])).tolist() == pytest.approx([1, 0], abs=1e-6)


def test_what_is_learned_finds_a_score_that_is_linear_in_its_features():
    seen = observed(80)
    store = fed(InertiaKV(), seen)
    keys = seen.k[0].norm(dim=-1)
    target = (keys - 0.1 * seen.v[0].norm(dim=-1)).flatten()
    found = learned(store, target.exp(), ridge=1e-9).view(2, 80)
    wanted = target.view(2, 80)
    torch.testing.assert_close(found - found.mean(1, keepdim=True), wanted - wanted.mean(1, keepdim=True))


def test_bad_input():
    with pytest.raises(AssayError, match="beta=1;"):
        InertiaKV(1)
    with pytest.raises(AssayError, match="refresh=0"):
        InertiaKV(refresh=0)
    with pytest.raises(AssayError, match="scorer='luck'; choose attention"):
        InertiaKV(scorer="luck")
    assert build("inertiakv(scorer=value, start=zero)", "policy").scorer == "value"
    with pytest.raises(AssayError, match="attach it before"):
        InertiaKV().score(0, fed(Knorm(), observed(4)))
