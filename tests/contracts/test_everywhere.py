"""Seams 5 and 7 on every decoder family: each policy at half of the cache, in each number format, on a padded batch that goes on."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from tests.checkpoints.parity import cases, random_model
from tests.contracts.test_policies import BOUNDED, compression
from tests.contracts.under_test import parts

from assay.checkpoints import load
from assay.checkpoints.catalogue import family_of
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.state import ModelState
from assay.core.store import distinct_bytes
from assay.core.transformer import Transformer

CONTEXT, STEPS, PADDING = 40, 1, 6
PINS = {"sink": 1, "recent": 3}


def families() -> list[str]:
    """Every family that decodes."""
    return sorted({family for family, _, config in cases() if family_of(config, "a case").causal})


@functools.cache
def model_of(family: str) -> Transformer:
    """The first of a family's tiny models some of whose layers grow without end."""
    for config in (config for name, _, config in cases() if name == family):
        with tempfile.TemporaryDirectory() as folder:
            random_model(config).save_pretrained(Path(folder))
            model = load(folder)
        if model.start(1).growing():
            return model
    raise AssertionError(f"{family}: every model has windows alone, so nothing would be tested")


def formats() -> list[str | None]:
    return [None, *(card.name for card in parts("format"))]


def policies() -> list[str]:
    """One expression of each policy; what stands in brackets or with options is tested on one model."""
    first = {expression.partition("(")[0]: expression for expression in reversed(BOUNDED)}
    return sorted(first.values())


def begun(model: Transformer, number_format: str | None) -> ModelState:
    state = model.start(2)
    return state if number_format is None else state.hold_in(build(number_format, "format", group=8))


@torch.no_grad()
def run(model: Transformer, state: ModelState, held: Compression | None) -> torch.Tensor:
    """Logits at every step, with the second sequence padded on the left."""
    tokens = torch.randint(model.config.vocab_size, (2, CONTEXT + STEPS), generator=torch.Generator().manual_seed(0))
    valid = torch.ones(2, CONTEXT, dtype=torch.bool)
    valid[1, :PADDING] = False
    if held is not None:
        held.attach(state)
    rows = [model(tokens[:, :CONTEXT], state, valid=valid, logits="last")[0]]
    if held is not None:
        held.finish_prefill()
    for step in range(STEPS):
        rows.append(model(tokens[:, CONTEXT + step : CONTEXT + step + 1], state, logits="last")[0])
        if held is not None:
            held.hold()
    return torch.cat(rows, 1)


@pytest.mark.parametrize("family", families())
@pytest.mark.parametrize("expression", policies())
def test_half_of_the_cache_is_half_in_every_format(expression, family):
    model = model_of(family)
    for number_format in formats():
        state = begun(model, number_format)
        held = compression(expression, 0.5, **PINS)
        logits = run(model, state, held)
        assert bool(logits.isfinite().all()), number_format
        assert state.seen.tolist() == [CONTEXT + STEPS, CONTEXT - PADDING + STEPS]
        stores = list(state.growing().values())
        for row, length in enumerate((CONTEXT, CONTEXT - PADDING)):
            kept = sum(sum(s.counts[row * s.kv_heads : (row + 1) * s.kv_heads]) for s in stores)
            spared = held.spared is not None and bool(torch.as_tensor(held.spared)[row])
            most = (length + STEPS if spared else length // 2) * sum(s.kv_heads for s in stores)
            assert 0 < kept <= most, number_format
        assert state.bytes == distinct_bytes([t for layer in state.layers for t in layer.tensors()])
