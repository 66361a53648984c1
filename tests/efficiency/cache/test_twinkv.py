"""TwinKV: every swap checked against a brute-force count of orphans, its limits, its memory."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.policy import Policy, top_per_owner
from assay.core.prefill import pieces
from assay.efficiency.cache.adakv import AdaKV
from assay.efficiency.cache.keydiff import KeyDiff
from assay.efficiency.cache.snapkv import SnapKV
from assay.efficiency.cache.twinkv import TwinKV, repair

T = 0.9


def clustered(classes: int, tokens: int, spread: float, seed: int, owners: int = 1) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    centres = torch.randn(owners, classes, 6, generator=made, dtype=torch.float64)
    of = torch.randint(classes, (owners, tokens), generator=made)
    keys = centres.gather(1, of[..., None].expand(-1, -1, 6))
    keys = keys + spread * torch.randn(owners, tokens, 6, generator=made, dtype=torch.float64)
    return torch.nn.functional.normalize(keys, dim=-1)


def orphans(keys: torch.Tensor, kept: set[int]) -> set[int]:
    """Dropped tokens of one owner that no kept key resembles."""
    near = keys @ keys.T
    return {i for i in range(len(keys)) if i not in kept and all(near[i, j] < T for j in kept)}


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 20), st.sampled_from([0.0, 0.1, 0.25, 0.4]), st.integers(2, 25))
def test_every_swap_lowers_the_orphans_and_orphans_no_donor(seed, classes, spread, size):
    keys = clustered(classes, 40, spread, seed, owners=2)
    made = torch.Generator().manual_seed(seed)
    kept = torch.rand(2, 40, generator=made).argsort(1).argsort(1) < size
    pinned = kept & (torch.rand(2, 40, generator=made) < 0.2)
    present = torch.ones(2, 40, dtype=torch.bool)
    present[1, 33:] = False
    kept, pinned = kept & present, pinned & present
    found = repair(keys, kept, present, pinned, torch.tensor([6, 9]), T)
    assert torch.equal(found.kept.sum(1), kept.sum(1)) and (found.kept | ~pinned).all()
    for owner, of in ((0, keys[0]), (1, keys[1, :33])):
        now, donors = set(kept[owner].nonzero()[:, 0].tolist()), set()
        swaps = [(orphan, donor) for o, orphan, donor in found.swaps if o == owner]
        assert len(swaps) <= (6, 9)[owner]
        for orphan, donor in swaps:
            before = orphans(of, now)
            assert orphan in before and donor in now and not pinned[owner, donor]
            assert any(of[donor] @ of[j] >= T for j in now - {donor})
            now = now - {donor} | {orphan}
            donors.add(donor)
            after = orphans(of, now)
            assert len(after) < len(before) and not after & donors
        assert now == set(found.kept[owner].nonzero()[:, 0].tolist())


def test_a_token_that_was_given_up_keeps_its_last_twin_even_where_more_orphans_would_be_cured():
    """On a circle, 20 degrees apart, are twins; `first` goes before its twins, and then only `last` resembles it."""
    names = ["first", "left", "left_again", "last", "beyond", "left_beyond", "lone", "lone2", "lone3", "pair", "pair2"]
    angles = torch.deg2rad(torch.tensor([0.0, -20, -20, 20, 40, -40]))
    keys = torch.zeros(11, 7)
    keys[:6, 0], keys[:6, 1] = angles.cos(), angles.sin()
    keys[6:9, 2:5] = torch.eye(3)
    keys[9:] = 0.5 * keys[4]
    keys[9:, 5] = 0.75**0.5
    kept = torch.arange(11)[None] < 6
    found = repair(keys[None], kept, torch.ones_like(kept), torch.zeros_like(kept), torch.tensor([9]), T)
    given_up = [names[donor] for _, _, donor in found.swaps]
    assert given_up == ["first", "left", "left_again", "beyond"]


def test_of_all_duplicates_one_of_each_class_is_kept():
    keys = clustered(8, 64, 0.0, seed=3)
    kept = torch.zeros(1, 64, dtype=torch.bool)
    kept[0, :16] = True
    everything, nothing = torch.ones_like(kept), torch.zeros_like(kept)
    found = repair(keys, kept, everything, nothing, torch.tensor([64]), T).kept[0]
    classes = (keys[0] @ keys[0].T > 1 - 1e-9).int().argmax(1)
    assert found.sum() == 16 and set(classes[found].tolist()) == set(classes.tolist())


class Hoarder(Policy):
    """Loves duplicates: equal keys score alike, so both stay or both go."""

    def score(self, layer, store):
        return store.flat().k[:, 0]


class Drawn(Policy):
    def score(self, layer, store):
        return torch.rand(len(store.flat().k), generator=torch.Generator().manual_seed(self.salt))


def test_facts_stated_twice_are_covered_at_least_as_well_and_better_where_duplicates_are_loved():
    gained = []
    for seed in range(30):
        facts = 30
        made = torch.Generator().manual_seed(seed)
        once = torch.nn.functional.normalize(torch.randn(facts, 32, generator=made, dtype=torch.float64), dim=-1)
        said = torch.arange(facts).repeat(2)
        seen = observed(60, kv_heads=1, dim=32)
        seen.k_unrotated.copy_(once[said])
        seen.k.copy_(once[said])
        for inner in (Hoarder(sink=0, recent=0), Drawn(sink=0, recent=0)):
            inner.salt = seed
            covered = []
            for policy in (inner, TwinKV(inner, cap=1.0)):
                store = fed(policy, seen)
                kept = policy.keep(0, store, policy.score(0, store), torch.tensor([24]))
                assert len(kept) == 24
                covered.append(len(set(said[kept].tolist())))
            assert covered[1] >= covered[0]
            if isinstance(inner, Hoarder):
                gained.append(covered[1] - covered[0])
    assert min(gained) > 0


@pytest.mark.parametrize("options", [{"threshold": 1.01}, {"cap": 0.0}])
def test_a_threshold_above_one_or_no_cap_changes_nothing(options):
    seen = observed(60)
    seen.k_unrotated.copy_(seen.k_unrotated[:, :, :1])
    for inner in (KeyDiff(), SnapKV(window=4)):
        policy = TwinKV(inner, **options)
        store = fed(policy, seen)
        scores, budget = policy.score(0, store), torch.tensor([20, 20])
        expected = top_per_owner(scores, store.flat().owner, budget)
        assert torch.equal(policy.keep(0, store, scores, budget), expected)


def test_pins_are_never_donors_and_the_cap_is_a_share_of_the_budget():
    seen = observed(60, kv_heads=1, dim=6)
    seen.k_unrotated.copy_(clustered(20, 60, 0.0, seed=1)[None])
    inner = KeyDiff()
    policy = TwinKV(inner)
    store = fed(policy, seen)
    scores = policy.score(0, store)
    scores[:25] = torch.inf
    kept = policy.keep(0, store, scores, torch.tensor([40]))
    plain = set(top_per_owner(scores, store.flat().owner, torch.tensor([40])).tolist())
    assert set(range(25)) <= set(kept.tolist())
    assert 0 < len(plain - set(kept.tolist())) <= 4


def test_keys_before_rotation_decide_and_are_dropped_after_the_repair():
    model, tokens = tiny(), some_tokens(100)
    for generating in (False, True):
        policy = TwinKV(SnapKV(recent=8), generating=generating)
        held, state = Compression(policy, 0.4), model.start(1)
        held.attach(state)
        with torch.no_grad():
            model(tokens[:, :90], state)
            store, name = state.layers[0].store, policy.named("unrotated")
            q = model.blocks[0].mixer.k_norm(
                model.blocks[0].mixer.k(model.blocks[0].norm1(model.embed(tokens[:, :90]))).unflatten(-1, (2, 8))
            )
            torch.testing.assert_close(store.column(name), q[0].transpose(0, 1).flatten(0, 1))
            held.finish_prefill()
            model(tokens[:, 90:91], state)
        assert (name in store.arrays) == generating


def test_a_sequence_that_is_compressed_later_is_repaired_later():
    """One of two sequences outgrows its budget first: the other's keys must still be there when it does."""
    policy = TwinKV(KeyDiff(sink=0, recent=0), cap=1.0)
    store = fed(policy, observed(40, batch=2, kv_heads=1))
    name = policy.named("unrotated")
    store.keep(policy.keep(0, store, policy.score(0, store), torch.tensor([20, 40])))
    assert store.counts == [20, 40] and name in store.arrays
    store.keep(policy.keep(0, store, policy.score(0, store), torch.tensor([20, 20])))
    assert store.counts == [20, 20] and name not in store.arrays


def test_of_a_context_in_pieces_the_keys_before_rotation_stay_until_the_last_is_repaired():
    model, tokens, held = (
        tiny(),
        some_tokens(100),
        Compression(TwinKV(SnapKV(recent=8), threshold=0.5, cap=1.0), "30tok"),
    )
    state, name, repaired = model.start(1), held.policy.named("unrotated"), 0
    held.attach(state)
    for begin, end in pieces(100, 25):
        with torch.no_grad():
            model(tokens[:, begin:end], state)
        store = state.layers[0].store
        assert name in store.arrays
        scores = held.policy.inner.score(0, store).masked_fill(held._pinned(store), torch.inf)
        alone = set(top_per_owner(scores, store.flat().owner, torch.tensor([30, 30])).tolist())
        before = store.flat().positions + 1000 * store.flat().owner
        held.finish_prefill() if end == 100 else held.finish_piece(torch.tensor([100]))
        after = store.flat().positions + 1000 * store.flat().owner
        repaired += begin > 0 and set(after.tolist()) != {int(before[i]) for i in alone}
    assert repaired and name not in store.arrays


def test_around_a_wrapper_the_inner_budgets_stand():
    model, tokens = tiny(), some_tokens(100)
    counts = []
    for policy in (AdaKV(SnapKV(recent=8)), TwinKV(AdaKV(SnapKV(recent=8)), threshold=0.6, cap=0.5)):
        held, state = Compression(policy, 0.4), model.start(1)
        held.attach(state)
        with torch.no_grad():
            model(tokens, state)
        held.finish_prefill()
        counts.append([s.counts for s in state.growing().values()])
    assert counts[0] == counts[1] and policy.recent == 8


@pytest.mark.timed
def test_it_takes_well_under_a_second_at_a_thousand_tokens():
    keys = torch.nn.functional.normalize(torch.randn(1, 1024, 256).repeat_interleave(2, 1)[:, :1024], dim=-1)
    kept = torch.zeros(1, 1024, dtype=torch.bool)
    kept[0, :512] = True
    begin = time.thread_time()  # other work may share the machine
    found = repair(keys, kept, torch.ones_like(kept), torch.zeros_like(kept), torch.tensor([512]), T)
    assert len(found.swaps) == 256 and time.thread_time() - begin < 1


def test_bad_input():
    with pytest.raises(AssayError, match="cap=3"):
        TwinKV(KeyDiff(), cap=3)
    with pytest.raises(AssayError, match="keys='raw'; choose before or after"):
        TwinKV(KeyDiff(), keys="raw")
