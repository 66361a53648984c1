"""The law of schedules, for every registered one: the trunk alone calls blocks, in the schedule's order, each run with its own state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.contracts.under_test import parts

from assay.core import registry
from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.sites import edit, record
from assay.core.transformer import Transformer

every_schedule = pytest.mark.parametrize("name", [card.name for card in parts("depth")])


def tiny(depth: Spec) -> Transformer:
    torch.manual_seed(0)
    position = {"part": "rope", "options": {}}
    block = BlockConfig(Spec("softmax", {"heads": 2, "position": position}), Spec("gated", {"hidden": 24}))
    windowed = replace(block, mixer=Spec("softmax", {"heads": 2, "window": 5, "position": position}))
    model = Transformer(TransformerConfig(20, 16, (block, windowed, block), depth=depth)).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model


def tokens(length: int) -> torch.Tensor:
    return torch.randint(20, (2, length), generator=torch.Generator().manual_seed(1))


@every_schedule
def test_blocks_run_in_the_schedule_s_order(name):
    model, ran = tiny(Spec(name)), []
    for number, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, number=number: ran.append((number, model.loop)))
    model(tokens(4))
    assert ran == [(step.block, step.loop) for step in registry.get(name, "depth")().steps(3)]
    assert {number for number, _ in ran} == {0, 1, 2}


@every_schedule
@torch.no_grad()
def test_any_cut_equals_the_whole_and_every_run_keeps_its_own_state(name):
    model, x = tiny(Spec(name)), tokens(40)
    whole, _ = model(x)
    state, got = model.start(2), []
    assert len(state.layers) == len(model.steps)
    for piece in x.split([17, 1, 1, 20, 1], 1):
        got.append(model(piece, state)[0])
    torch.testing.assert_close(torch.cat(got, 1), whole, rtol=0, atol=1e-9)
    assert len({layer.store.arrays["k"].data_ptr() for layer in state.layers}) == len(model.steps)


@every_schedule
@torch.no_grad()
def test_each_run_of_a_block_has_sites_of_its_own(name):
    model, x = tiny(Spec(name)), tokens(6)
    plain, _ = model(x)
    with record(model, "blocks.1.resid_post") as tape:
        model(x)
    runs = tape.all("blocks.1.resid_post")
    assert len(runs) == sum(step.block == 1 for step in model.steps)
    for step in (s for s in model.steps if s.block == 1 and len(runs) > 1):
        where = f"loops.{step.loop}.blocks.1.resid_post"
        with record(model, where) as one:
            model(x)
        assert torch.equal(one[where], runs[step.loop])
        with edit(model, {where: torch.zeros_like}), record(model, "blocks.1.resid_post") as changed:
            after, _ = model(x)
        assert [bool(t.any()) for t in changed.all("blocks.1.resid_post")][step.loop] is False
        assert not torch.equal(after, plain)
