"""Models stored in bfloat16 under every cache policy: keys and values are held in 16 bits, policies score them, and decoding goes on."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.test_everywhere import policies
from tests.core.tiny import tiny, tokens

from assay.core.compression import Compression
from assay.core.expressions import build, parse

KEEPS_PROMPTS = {"random_attention": "160tok"}


@pytest.mark.parametrize("name", policies())
@torch.no_grad()
def test_a_policy_acts_on_keys_held_in_bfloat16(name):
    policy = build(parse(name), "policy")
    model, text = tiny(dtype=torch.float32).bfloat16(), tokens(2, 120)
    valid = torch.ones_like(text, dtype=torch.bool)
    valid[0, :9] = False
    state, held = model.start(2), Compression(policy, KEEPS_PROMPTS.get(name, "64tok"))
    held.attach(state)
    logits, _ = model(text, state, valid=valid, logits="last")
    held.finish_prefill()
    for _ in range(5 if name not in KEEPS_PROMPTS else 60):
        logits, _ = model(logits.argmax(-1), state, logits="last")
        held.hold()
    assert logits.dtype == torch.float32 and bool(logits.isfinite().all())
    for store in (layer.store for layer in state.layers):
        assert store.pages().k.dtype == store.pages().v.dtype == torch.bfloat16


@pytest.mark.parametrize("pieces", [[60], [1] * 60, [40, 1, 1, 18]])
@torch.no_grad()
def test_pieces_of_a_sequence_agree_to_what_bfloat16_resolves(pieces):
    model, text = tiny(dtype=torch.float32).bfloat16(), tokens(2, 60)
    whole, state = model(text)[0], model.start(2)
    cut = torch.cat([model(piece, state)[0] for piece in text.split(pieces, 1)], 1)
    assert (cut - whole).norm() < 0.03 * whole.norm()
