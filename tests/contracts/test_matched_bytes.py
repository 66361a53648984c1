"""Seams 5 and 7: a budget in bytes holds what is really held, for every policy in every kind of format; never more, hardly less."""

import pytest
import torch
from tests.contracts.test_held import FORMATS
from tests.contracts.test_policies import BOUNDED, compression, total
from tests.contracts.tiny_models import some_tokens, tiny

from assay.core.budget import Budget
from assay.core.build import build
from assay.core.coding import FULL, GROUP
from assay.core.prefill import prefill
from assay.core.sizes import slot_bytes
from assay.core.store import Store

CONTEXT, STEPS = 300, 12
HELD = [None, *(f for f in FORMATS if f.startswith(("int4", "kivi")))]


def eligible(state) -> int:
    return sum(store.bytes for store in state.growing().values())


def quantum(store: Store) -> int:
    """Bytes of one grain a head, or of one page where heads keep different counts, with what belongs to it in tables."""
    tokens = store.grain if store.dense else store.page
    tables = sum(
        t.shape[1:].numel() * t.element_size() for name, t in store.tables.items() if name.startswith((FULL, GROUP))
    )
    return store.kv_heads * (tokens * slot_bytes(store) + 16 * tables + 8)


def one_token(model, text):
    """Growing stores that hold one token, in a format or in full precision."""
    state = model.start(1)
    if text is not None:
        state.hold_in(build(text, "format"))
    with torch.no_grad():
        model(some_tokens(1), state, logits="none")
        return list(state.growing().values())


@pytest.mark.parametrize("text", HELD)
@pytest.mark.parametrize("expression", BOUNDED)
@torch.no_grad()
def test_what_is_held_matches_a_share_of_the_full_caches_bytes(expression, text):
    model, tokens = tiny(dtype=torch.float32, windows=(None, 8, None)), some_tokens(CONTEXT + STEPS)
    whole = model.start(1)
    model(tokens[:, :CONTEXT], whole, logits="none")
    target = Budget.matching(0.3, tokens=CONTEXT, stores=one_token(model, None))
    assert target.amount == int(0.3 * eligible(whole))
    held, state = compression(expression, target), model.start(1)
    if text is not None:
        state.hold_in(build(text, "format"))
    prefill(model, tokens[:, :CONTEXT], state, held=held.attach(state))
    if any(held.spared):
        pytest.skip("its gate keeps the whole cache")
    room = sum(map(quantum, state.growing().values()))
    assert eligible(state) <= target.amount
    assert eligible(state) > target.amount - room or total(state) == 4 * CONTEXT
    for step in range(CONTEXT, CONTEXT + STEPS):
        model(tokens[:, step : step + 1], state)
        held.hold()
        assert eligible(state) <= target.amount


@pytest.mark.parametrize("text", HELD)
@torch.no_grad()
def test_how_many_tokens_that_is_is_known_before_the_run(text):
    model, tokens = tiny(dtype=torch.float32), some_tokens(CONTEXT)
    target = Budget.matching(0.3, tokens=CONTEXT, stores=one_token(model, None))
    known = int(target.tokens(torch.tensor([CONTEXT]), one_token(model, text)))
    held, state = compression("random", target), model.start(1)
    if text is not None:
        state.hold_in(build(text, "format"))
    prefill(model, tokens, state, held=held.attach(state))
    assert total(state) == 4 * min(known, CONTEXT)
    assert text is None or known > 90, "fewer bits hold more tokens than the 90 of full precision"


@torch.no_grad()
def test_a_full_cache_in_few_bits_has_the_bytes_that_are_reckoned():
    model, tokens = tiny(dtype=torch.float32), some_tokens(CONTEXT)
    for text in FORMATS:
        state = model.start(1).hold_in(build(text, "format"))
        model(tokens, state, logits="none")
        assert eligible(state) == Budget.matching(1, tokens=CONTEXT, stores=one_token(model, text)).amount


@pytest.mark.parametrize("expression", ["random", "adakv(snapkv)", "twinkv(snapkv)", "nestedkv(keys=before)"])
@torch.no_grad()
def test_pieces_are_held_to_the_bytes_too(expression):
    """What a policy needs until the end of the prefill alone (`brief`) comes on top of the budget in between."""
    model, tokens = tiny(dtype=torch.float32), some_tokens(CONTEXT)
    target = Budget.matching(0.3, tokens=CONTEXT, stores=one_token(model, None))
    held, state = compression(expression, target), model.start(1)
    held.attach(state)
    prefill(model, tokens, state, chunk=50, held=held)
    assert eligible(state) <= target.amount < held.peak_bytes
    assert eligible(state) > target.amount - sum(map(quantum, state.growing().values()))
