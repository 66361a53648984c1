"""Laws that hold for every composition: any cut, padding, forks, saving and loading, generation, weights in a format."""

from __future__ import annotations

import pytest
import torch
from tests.compositions.models import MODELS, some_tokens

from assay.checkpoints import load, save
from assay.core.build import build
from assay.core.generation import Options, generate_ids
from assay.efficiency.quantize.weights import quantize_weights

every_model = pytest.mark.parametrize("name", MODELS)
CHANGES = ["as it is", "int8 weights", "int4 store", "everything read by quest"]
every_change = pytest.mark.parametrize("change", CHANGES)
FORMATS = {"int4 store": "int4(group=8)", "kivi store": "kivi(bits=4, group=8, recent=10)"}


def changed(name: str, change: str):
    """The model and how its states begin."""
    model = MODELS[name]()
    if change == "int8 weights":
        model = quantize_weights(model, build("int8", "format"))

    def start(batch: int = 1):
        state = model.start(batch)
        if change in FORMATS:
            state.hold_in(build(FORMATS[change], "format"))
        if change == "everything read by quest":
            state.read_with(build("quest(pages=1000, size=8)", "reader"))
        return state

    return model, start


@every_model
@every_change
@torch.no_grad()
def test_any_cut_gives_the_same_logits(name, change):
    model, start = changed(name, change)
    tokens = some_tokens(70, batch=2)
    cuts = [[70], [1] * 70, [30, 1, 1, 25, 13]]
    found = []
    for cut in cuts:
        state = start(2)
        found.append(torch.cat([model(piece, state)[0] for piece in tokens.split(cut, 1)], 1))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-5 if change.startswith("int") else 1e-9)


@every_model
@pytest.mark.parametrize(
    "change", [*CHANGES, "kivi store"]
)  # it is read in full at first, so cuts differ: contracts/test_held.py
@torch.no_grad()
def test_a_left_padded_batch_equals_its_sequences_alone(name, change):
    model, start = changed(name, change)
    lengths, steps = [41, 17, 3], 9
    rows = [some_tokens(n, seed=n) for n in lengths]
    more = some_tokens(steps, batch=3, seed=7)
    tokens, valid = torch.zeros(3, 41, dtype=torch.long), torch.zeros(3, 41, dtype=torch.bool)
    for b, row in enumerate(rows):
        tokens[b, 41 - lengths[b] :], valid[b, 41 - lengths[b] :] = row[0], True
    state = start(3)
    together = [model(tokens, state, valid=valid)[0][:, -1:]] + [model(t, state)[0] for t in more.split(1, 1)]
    for b, row in enumerate(rows):
        own = start()
        first = model(row, own, valid=None)[0][:, -1:]
        alone = [first] + [model(t, own)[0] for t in more[b : b + 1].split(1, 1)]
        got = torch.cat([t[b : b + 1] for t in together], 1)
        atol = 1e-9 if change in ("as it is", "everything read by quest") else 1e-5
        torch.testing.assert_close(got, torch.cat(alone, 1), rtol=0, atol=atol)


@every_model
@torch.no_grad()
def test_a_fork_goes_its_own_way_and_reordering_moves_sequences(name):
    model, tokens = MODELS[name](), some_tokens(40, batch=2)
    state = model.start(2)
    model(tokens[:, :30], state)
    fork, swapped = state.fork(), state.reorder(torch.tensor([1, 1, 0]))
    model(some_tokens(5, batch=2, seed=9), fork)
    wanted, _ = model(tokens[:, 30:], state)
    got, _ = model(tokens[[1, 1, 0], 30:], swapped)
    torch.testing.assert_close(got, wanted[[1, 1, 0]], rtol=0, atol=1e-9)


@every_model
@torch.no_grad()
def test_a_saved_model_loads_and_generates_the_same(name, tmp_path):
    model = MODELS[name](dtype=torch.float32)
    back = load(save(model, tmp_path / "model"))
    assert back.config == model.config
    tokens = some_tokens(20)
    assert torch.equal(back(tokens)[0], model(tokens)[0])
    rows = [some_tokens(12)[0].tolist(), some_tokens(5, seed=3)[0].tolist()]
    options = Options(max_tokens=10)
    assert generate_ids(back, rows, options) == generate_ids(model, rows, options)
