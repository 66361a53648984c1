"""Seam 5, long contexts: what every policy owes when a context is fed in pieces and it drops tokens between them."""

import pytest
import torch
from tests.contracts.test_policies import (
    BOUNDED,
    CONTEXT,
    END,
    EVERY,
    STRICT,
    compression,
    decoded,
    positions,
    prefilled,
    total,
)
from tests.contracts.tiny_models import causal, reference, some_tokens, tiny

from assay.core.errors import AssayError
from assay.core.prefill import pieces, prefill

CHUNK, HEADS = 20, 4  # two growing layers of two key-value heads


@torch.no_grad()
def chunked(model, held, tokens, chunk=CHUNK, valid=None, watch=None):
    """A state after a prefill in pieces, and the last token's logits. `watch(state)` is called at every append."""
    state = model.start(len(tokens))
    if held is not None:
        held.attach(state)
    for layer in state.growing() if watch else ():
        state.layers[layer].observers += (lambda store, seen: watch(state),)
    logits = prefill(model, tokens, state, valid=valid, chunk=chunk, held=held)
    return state, logits[:, -1]


@pytest.mark.parametrize("budget", [0.3, "28tok"])
@pytest.mark.parametrize("expression", BOUNDED)
def test_never_more_than_the_ceiling_and_a_piece_is_held(expression, budget):
    model, tokens, held, counts, sizes = tiny(), some_tokens(CONTEXT), compression(expression, budget), [], []

    def watch(state):
        counts.append(total(state))
        sizes.append(state.bytes)

    state, _ = chunked(model, held, tokens, watch=watch)
    assert 28 * HEADS < max(counts) <= (28 + CHUNK) * HEADS
    assert total(state) == 28 * HEADS == held.ceiling[0] * HEADS
    assert held.peak_bytes == max(sizes[1::2]), "after the last layer's append nothing more comes before the drop"
    whole = compression(expression, budget)
    prefilled(model, whole, tokens)
    assert held.peak_bytes < whole.peak_bytes
    for now in range(CONTEXT, END):
        decoded(model, state, held, some_tokens(1, seed=now))
        assert total(state) <= 28 * HEADS


@pytest.mark.parametrize("expression", EVERY)
def test_with_everything_in_the_budget_pieces_change_nothing(expression):
    model, tokens = tiny(), some_tokens(END)
    held = compression(expression, 1)
    state, first = chunked(model, held, tokens[:, :CONTEXT])
    plain, expected = prefilled(model, None, tokens[:, :CONTEXT])
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-9)
    assert positions(state) == positions(plain)
    for mine, other in zip(state.growing().values(), plain.growing().values(), strict=True):
        assert mine.bytes == other.bytes  # layers with a window trim when they have room to, by where pieces end
    steps = decoded(model, state, held, tokens[:, CONTEXT:])
    torch.testing.assert_close(steps, decoded(model, plain, None, tokens[:, CONTEXT:]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("expression", "chunk"), [*((e, CONTEXT) for e in BOUNDED), ("snapkv", 10**6), ("snapkv", None)]
)
def test_one_piece_is_a_whole_prefill(expression, chunk):
    model, tokens = tiny(), some_tokens(CONTEXT)
    state, first = chunked(model, compression(expression, 0.3), tokens, chunk)
    plain, expected = prefilled(model, compression(expression, 0.3), tokens)
    assert torch.equal(first, expected) and positions(state) == positions(plain)


@pytest.mark.parametrize("expression", BOUNDED)
def test_what_is_read_in_pieces_and_dropped_at_the_end_alone_is_judged_as_if_read_whole(expression):
    model, tokens, held = tiny(), some_tokens(CONTEXT), compression(expression, 0.3)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        prefill(model, tokens, state, chunk=CHUNK)
    held.finish_prefill()
    plain, _ = prefilled(model, compression(expression, 0.3), tokens)
    assert positions(state) == positions(plain)


@pytest.mark.parametrize("expression", STRICT)
def test_kept_sets_replayed_as_a_mask_give_the_same_logits_in_every_piece(expression):
    model, tokens = tiny(), some_tokens(CONTEXT)
    held, state, allowed, given = compression(expression, 0.3), model.start(1), causal(model, CONTEXT), []
    held.attach(state)
    for begin, end in pieces(CONTEXT, CHUNK):
        for (layer, owner), at in positions(state).items() if begin else ():
            allowed[layer][owner, begin:end, :begin] = False
            allowed[layer][owner, begin:end, at] = True
        with torch.no_grad():
            given.append(model(tokens[:, begin:end], state)[0])
        held.finish_piece(torch.tensor([CONTEXT]))
        assert end <= 28 or total(state) == 28 * HEADS
    wanted = reference(model, tokens, allowed)
    assert not torch.allclose(wanted, reference(model, tokens, causal(model, CONTEXT)), atol=1e-3)
    torch.testing.assert_close(torch.cat(given, 1), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("expression", BOUNDED)
def test_a_left_padded_batch_in_pieces_equals_its_sequences_alone(expression):
    model, lengths = tiny(), [CONTEXT, 61, 30]
    rows = [some_tokens(length, seed=length) for length in lengths]
    valid = torch.arange(CONTEXT) >= CONTEXT - torch.tensor(lengths)[:, None]
    batch = torch.cat([torch.nn.functional.pad(r, (CONTEXT - r.shape[1], 0)) for r in rows])
    steps = some_tokens(6, seed=9)
    held = compression(expression, 0.35)
    state, first = chunked(model, held, batch, valid=valid)
    together = torch.cat([first[:, None], decoded(model, state, held, steps.expand(3, -1))], 1)
    for b, row in enumerate(rows):
        alone = compression(expression, 0.35)
        single, first = chunked(model, alone, row)
        expected = torch.cat([first[:, None], decoded(model, single, alone, steps)], 1)
        torch.testing.assert_close(together[b : b + 1], expected, rtol=0, atol=1e-9)
        for (layer, owner), at in positions(single).items():
            assert positions(state)[layer, b * 2 + owner] == at


@pytest.mark.parametrize("expression", STRICT)
def test_pins_stay_and_a_pinned_prompt_that_does_not_fit_is_refused_at_the_first_piece(expression):
    model, tokens = tiny(), some_tokens(CONTEXT)
    state, _ = chunked(model, compression(expression, 0.3), tokens)
    for at in positions(state).values():
        assert {0, 1, *range(CONTEXT - 5, CONTEXT)} <= set(at)
    fits = compression(expression, f"{CONTEXT + 9}tok", prompt=True)
    state, _ = chunked(model, fits, tokens)
    assert total(state) == CONTEXT * HEADS
    seen = []
    with pytest.raises(AssayError, match="pinned"):
        chunked(model, compression(expression, 0.5, prompt=True), tokens, watch=lambda s: seen.append(total(s)))
    assert max(seen) <= CHUNK * HEADS


@pytest.mark.parametrize("expression", BOUNDED)
def test_a_second_turn_in_pieces(expression):
    model, tokens = tiny(), some_tokens(200)
    held = compression(expression, 0.3)
    state, _ = chunked(model, held, tokens[:, :CONTEXT])
    with torch.no_grad():
        prefill(model, tokens[:, CONTEXT:], state, chunk=CHUNK, held=held)
    assert total(state) == 60 * HEADS == held.ceiling[0] * HEADS


@pytest.mark.parametrize("windows", [(None, 8, None), (8, 8)])
def test_without_a_policy_pieces_change_no_logit(windows):
    model, lengths = tiny(windows=windows), torch.tensor([[70], [33]])
    tokens, valid = some_tokens(140).view(2, 70), torch.arange(70) >= 70 - lengths
    for there in (None, valid):
        whole, expected = chunked(model, None, tokens, None, there)
        for chunk in (1, 7, 69):
            state, given = chunked(model, None, tokens, chunk, there)
            torch.testing.assert_close(given, expected, rtol=0, atol=1e-9)
            assert state.seen.tolist() == whole.seen.tolist() and positions(state) == positions(whole)


def test_pieces_cover_a_context_from_its_end():
    assert list(pieces(10, 4)) == [(0, 2), (2, 6), (6, 10)]
    assert list(pieces(8, 4)) == [(0, 4), (4, 8)]
    assert list(pieces(3, 4)) == list(pieces(3, None)) == [(0, 3)]


def test_bad_input():
    model, tokens = tiny(), some_tokens(10)
    for chunk in (0, -1, 2.5, True):
        with pytest.raises(AssayError, match="chunk"):
            prefill(model, tokens, model.start(1), chunk=chunk)
    with pytest.raises(AssayError, match="attach it to this one"):
        prefill(model, tokens, model.start(1), held=compression("recent", 0.5))
