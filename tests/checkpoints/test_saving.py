"""Saving: what transformers and we read again, and that nothing is overwritten or left half-written."""

from __future__ import annotations

import pytest
import torch
from tests.checkpoints.parity import SHARED, gap, random_model
from transformers import AutoModelForCausalLM

from assay.checkpoints import load, save
from assay.core.errors import AssayError

_LLAMA = SHARED | {"model_type": "llama", "intermediate_size": 48, "num_key_value_heads": 2}
_TOKENS = torch.arange(30)[None] * 7 % 96


@pytest.fixture
def folder(tmp_path):
    random_model(_LLAMA).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_what_is_saved_loads_here_and_in_transformers(folder, tmp_path):
    model = load(folder)
    made = save(model, tmp_path / "new" / "deep", shard_bytes=20_000)
    assert len(list(made.glob("model-*.safetensors"))) > 1
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    assert gap(theirs(_TOKENS).logits, model(_TOKENS)[0]) < 1e-4
    assert torch.equal(load(made)(_TOKENS)[0], model(_TOKENS)[0])


def test_saving_overwrites_nothing_and_leaves_nothing(folder, tmp_path, monkeypatch):
    model = load(folder)
    before = (folder / "config.json").read_bytes()
    with pytest.raises(AssayError, match="is there already and is not overwritten"):
        save(model, folder)
    assert (folder / "config.json").read_bytes() == before

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(AssayError, match="No space left"):
        save(model, tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny"]


def test_a_family_that_is_none(folder, tmp_path):
    with pytest.raises(AssayError, match="unknown family 'nonesuch'; there are .*gemma3, gpt2, .*llama"):
        save(load(folder), tmp_path / "x", family="nonesuch")


def test_bfloat16_is_saved_as_such(folder, tmp_path):
    made = save(load(folder, dtype="bfloat16"), tmp_path / "half")
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype="auto")
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.bfloat16}
    assert torch.equal(load(made).embed.weight, load(folder).embed.weight.bfloat16().float())
