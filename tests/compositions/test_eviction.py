"""Cache policies on unlike models: what they keep, replayed as a mask on the whole model, gives the same logits."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Int
from tests.compositions.models import MODELS, some_tokens
from torch import Tensor

from assay.core.build import build
from assay.core.compression import Compression
from assay.core.pages import distinct_bytes
from assay.core.prefill import prefill
from assay.core.sites import edit
from assay.core.state import ModelState
from assay.core.store import Store
from assay.core.transformer import Transformer

HOLDING = [name for name in MODELS if name != "looped recurrence"]
every_model = pytest.mark.parametrize("name", HOLDING)
every_policy = pytest.mark.parametrize(
    "policy", ["snapkv", "h2o", "keydiff", "random", "adakv(snapkv)", "twinkv(nestedkv)"]
)


def compressed(model: Transformer, policy: str, budget: str, tokens: Int[Tensor, "batch tokens"], **options) -> tuple:
    state = model.start(len(tokens))
    if "format" in options:
        state.hold_in(build(options["format"], "format"))
    held = Compression(build(policy, "policy"), budget).attach(state)
    model(tokens, state, logits="none", valid=options.get("valid"))
    held.finish_prefill()
    return state, held


def kept_sets(state: ModelState) -> dict[int, list[set[int]]]:
    """Of each step with a growing store the positions that each of its heads holds, for one sequence."""
    found = {}
    for step, store in state.growing().items():
        flat = store.flat()
        found[step] = [set(flat.positions[flat.owner == head].tolist()) for head in range(store.kv_heads)]
    return found


@every_model
@every_policy
@torch.no_grad()
def test_kept_sets_replayed_as_a_mask_give_the_same_logits_at_every_step(name, policy):
    model, tokens, more = MODELS[name](), some_tokens(90), some_tokens(12, seed=4)
    state, held = compressed(model, policy, "0.5", tokens)
    whole = model.start(1)
    model(tokens, whole, logits="none")
    for token in more.split(1, 1):
        got, _ = model(token, state)
        # this step read what was held before it and itself
        read = kept_sets(state)
        masks = {}
        for at, sets in read.items():
            length = int(whole.seen) + 1
            allowed = torch.tensor([[p in one for p in range(length)] for one in sets])
            masks[at] = allowed
        wanted = replayed(model, whole, token, masks)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)
        held.hold()


def replayed(model: Transformer, whole: ModelState, token: Tensor, masks: dict[int, Tensor]) -> Tensor:
    """One step of the model that holds everything, reading only what the masks allow, by editing its scores."""
    edits = {}
    for at, allowed in masks.items():
        step = model.steps[at]
        runs = sum(s.block == step.block for s in model.steps)
        where = f"loops.{step.loop}.blocks.{step.block}" if runs > 1 else f"blocks.{step.block}"

        def masked(scores: Tensor, allowed: Tensor = allowed) -> Tensor:
            heads = scores.shape[1] // len(allowed)
            return scores.masked_fill(~allowed.repeat_interleave(heads, 0)[None, :, None], -torch.inf)

        edits[f"{where}.attn.scores"] = masked
    with edit(model, edits):
        return model(token, whole)[0]


@every_model
@every_policy
@torch.no_grad()
def test_a_padded_batch_is_compressed_as_its_sequences_alone(name, policy):
    model = MODELS[name]()
    rows, more = [some_tokens(n, seed=n) for n in (90, 64)], some_tokens(6, batch=2, seed=5)
    tokens, valid = torch.zeros(2, 90, dtype=torch.long), torch.zeros(2, 90, dtype=torch.bool)
    for b, row in enumerate(rows):
        tokens[b, 90 - row.shape[1] :], valid[b, 90 - row.shape[1] :] = row[0], True
    state, held = compressed(model, policy, "0.6", tokens, valid=valid)
    together = []
    for token in more.split(1, 1):
        together.append(model(token, state)[0])
        held.hold()
    for b, row in enumerate(rows):
        own, mine = compressed(model, policy, "0.6", row)
        for step, token in enumerate(more[b : b + 1].split(1, 1)):
            torch.testing.assert_close(model(token, own)[0], together[step][b : b + 1], rtol=0, atol=1e-9)
            mine.hold()


@every_model
@torch.no_grad()
def test_an_evicted_cache_in_four_bits_is_smaller_and_near(name):
    model, tokens, more = MODELS[name](), some_tokens(120), some_tokens(1, seed=4)
    plain, _ = compressed(model, "recent", "0.5", tokens)
    coded, held = compressed(model, "recent", "0.5", tokens, format="int4(group=8)")
    assert [s.counts for s in coded.growing().values()] == [s.counts for s in plain.growing().values()]
    numbers = [
        sum(t.numel() * t.element_size() for s in state.growing().values() for n, t in s.arrays.items() if n[0] in "kv")
        for state in (coded, plain)
    ]
    assert numbers[0] == numbers[1] / 8, "of 64 bits, 4 for the code and 4 for a share of offset and scale"
    assert sum(s.bytes for s in coded.growing().values()) < sum(s.bytes for s in plain.growing().values())
    first, whole = (next(iter(state.growing().values())).flat() for state in (coded, plain))
    assert torch.equal(first.positions, whole.positions)
    assert 0 < (first.k - whole.k).norm() < 0.1 * whole.k.norm()
    assert model(more, coded)[0].isfinite().all()
    held.hold()


@every_model
@torch.no_grad()
def test_a_reader_over_an_evicted_cache_reads_what_is_kept(name):
    model, tokens, more = MODELS[name](), some_tokens(120), some_tokens(10, seed=4)
    plain, ours = compressed(model, "adakv(keydiff)", "0.5", tokens)
    read, theirs = compressed(model, "adakv(keydiff)", "0.5", tokens)
    read.read_with(build("quest(pages=1000, size=4)", "reader"))
    few, _ = compressed(model, "adakv(keydiff)", "0.5", tokens)
    few.read_with(build("quest(pages=2, size=4)", "reader"))
    changed = False
    for token in more.split(1, 1):
        wanted, _ = model(token, plain)
        torch.testing.assert_close(model(token, read)[0], wanted, rtol=0, atol=1e-9)
        changed |= not torch.allclose(model(token, few)[0], wanted, rtol=0, atol=1e-6)
        ours.hold(), theirs.hold()
    assert changed, "two pages of four tokens cannot read all that matters"


@every_model
@torch.no_grad()
def test_what_a_reader_leaves_out_may_be_nan(name):
    model, tokens, token = MODELS[name](), some_tokens(120), some_tokens(1, seed=4)
    state, _ = compressed(model, "keydiff", "0.5", tokens)
    state.read_with(build("quest(pages=3, size=4)", "reader"))
    fork = state.fork()
    wanted, _ = model(token, state)
    for at, store in fork.growing().items():
        plan = state.layers[at].plan
        fork.layers[at].plan = plan  # its ranges are known, so that planning need not read the keys
        gone = plan.pages.positions[~plan.read]
        owners = plan.pages.owner[~plan.read]
        pages = store.pages()
        size = pages.positions.shape[1]
        owner = pages.owner.repeat_interleave(size)
        hit = torch.zeros_like(owner, dtype=torch.bool)
        for o, positions in zip(owners.tolist(), gone, strict=True):
            hit |= (owner == o) & torch.isin(pages.positions.flatten(), positions[positions >= 0])
        store.arrays["k"].flatten(0, 1)[hit] = torch.nan
        store.arrays["v"].flatten(0, 1)[hit] = torch.nan
    got, _ = model(token, fork)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@every_model
@every_policy
@torch.no_grad()
def test_a_long_context_in_pieces_never_holds_more_than_the_ceiling_and_a_piece(name, policy):
    model, tokens, counts = MODELS[name](), some_tokens(200), []
    state = model.start(1)
    compression = Compression(build(policy, "policy"), "60tok").attach(state)
    for layer in state.growing():
        state.layers[layer].observers += (lambda store, seen: counts.append(average(state)),)
    prefill(model, tokens, state, chunk=30, held=compression)
    assert 60 < max(counts) <= 90 and average(state) == 60
    for token in some_tokens(5, seed=4).split(1, 1):
        assert model(token, state)[0].isfinite().all()
        compression.hold()


def average(state: ModelState) -> float:
    """Tokens a key-value head over all layers that grow."""
    stores = state.growing().values()
    return sum(sum(s.counts) for s in stores) / sum(s.owners for s in stores)


@every_model
@pytest.mark.parametrize("policy", ["snapkv", "adakv(keydiff)", "twinkv(nestedkv)"])
@torch.no_grad()
def test_an_evicted_cache_in_groups_of_two_bits_keeps_the_same_tokens_and_the_last_ones_in_full(name, policy):
    model, tokens, more = MODELS[name](), some_tokens(120), some_tokens(30, seed=4)
    plain, _ = compressed(model, policy, "0.5", tokens)
    coded, held = compressed(model, policy, "0.5", tokens, format="kivi(bits=2, group=8, recent=10)")
    assert kept_sets(coded) == kept_sets(plain), "it has chosen by keys in full"
    for mine, other in zip(coded.growing().values(), plain.growing().values(), strict=True):
        assert without_notes(mine) < 0.5 * without_notes(other) and max(mine.full) < 18
        full = mine.arrays["row"].flatten()[mine.slots()] < 0
        assert torch.equal(mine.flat().k[full], other.flat().k[full]) and sum(mine.full) == int(full.sum()) > 0
    for token in more.split(1, 1):
        assert model(token, coded)[0].isfinite().all()
        held.hold()
    assert all(max(s.full) < 18 for s in coded.growing().values())


def without_notes(store: Store) -> int:
    return store.bytes - distinct_bytes(list(store.notes.values()))
