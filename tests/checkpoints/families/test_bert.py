"""BERT's encoder: its segments, old and prefixed names, its pooler left out, what it cannot be."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.parity import SHARED, gap, random_model

from assay.checkpoints import load, save
from assay.checkpoints.families.bert import FAMILY
from assay.core.config import Spec
from assay.core.errors import AssayError, Refused

_BERT = SHARED | {"model_type": "bert", "intermediate_size": 48}

CASES = {"plain": _BERT, "relu, four segments": _BERT | {"hidden_act": "relu", "type_vocab_size": 4}}
REFUSED = {
    "relative positions (position_embedding_type)": {"position_embedding_type": "relative_key"},
    "is_decoder": {"is_decoder": True},
}
_TOKENS = torch.arange(20)[None] * 7 % 96


@pytest.fixture
def folder(tmp_path):
    random_model(_BERT).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@torch.no_grad()
def test_a_batch_padded_on_the_right(folder):
    theirs, ours = random_model(_BERT), load(folder)
    tokens = torch.arange(40).view(2, 20) * 7 % 96
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[1, 5:] = False
    wanted = theirs(tokens, attention_mask=valid.long()).last_hidden_state
    assert gap(ours.hidden(tokens, valid=valid)[valid], wanted[valid]) < 1e-4
    assert gap(ours.hidden(tokens[1:, :5]), wanted[1:, :5]) < 1e-4


@torch.no_grad()
def test_names_of_older_files_and_with_a_prefix(folder):
    wanted = load(folder).hidden(_TOKENS)
    old = {".weight": ".gamma", ".bias": ".beta"}
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, dot, last = name.rpartition(".")
        tensors[f"bert.{stem}{old[dot + last] if 'LayerNorm' in stem else dot + last}"] = tensor
    tensors["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(load(folder).hidden(_TOKENS), wanted)


def test_a_file_without_segments_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["embeddings.token_type_embeddings.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(AssayError, match=r"lacks 1 tensors .*: embeddings\.token_type_embeddings\.weight"):
        load(folder)


def test_what_is_saved_has_segments_that_add_nothing(folder, tmp_path):
    model = load(folder)
    made = load_file(save(model, tmp_path / "made") / "model.safetensors")
    assert not made["embeddings.token_type_embeddings.weight"].any()
    assert torch.equal(made["embeddings.position_embeddings.weight"], model.positions.weight)
    assert torch.equal(load(tmp_path / "made").hidden(_TOKENS), model.hidden(_TOKENS))


def test_an_encoder_does_not_generate(folder):
    with pytest.raises(Refused, match="keeps no state"):
        load(folder).start(1)


def test_it_gives_no_logits(folder):
    model = load(folder)
    for logits in ("all", "last"):
        with pytest.raises(
            AssayError, match="tiny has no readout: it was trained for its hidden states; take model.hidden"
        ):
            model(_TOKENS, logits=logits)
    assert model(_TOKENS, logits="none") == (None, None)
    assert "logits" not in model.site_names() and "final_norm" in model.site_names()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"causal": True}, "causal=True"),
        ({"tied": False}, "tied=False"),
        ({"final_norm": True}, "final_norm=True"),
        ({"mixer": {"heads": 4, "bias": False}}, "without biases"),
        ({"mixer": {"heads": 4, "kv_heads": 2, "bias": True}}, "grouped heads"),
        ({"mixer": {"heads": 4, "bias": True, "position": {"part": "rope", "options": {}}}}, "position"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_its_files_cannot_express_is_refused(change, said):
    config = FAMILY.read(_BERT)
    if "mixer" in change:
        mixer = Spec("bidirectional", change["mixer"])
        change = {"blocks": tuple(dataclasses.replace(block, mixer=mixer) for block in config.blocks)}
    with pytest.raises(AssayError, match=f"bert files cannot express .*{said}"):
        FAMILY.write(dataclasses.replace(config, **change))
