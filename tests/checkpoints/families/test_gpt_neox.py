"""GPT-NeoX: q, k and v joined head by head, rope on a quarter of each head, blocks side by side or one after the other."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.parity import SHARED, gap, random_model

from assay.checkpoints import load
from assay.checkpoints.families.gpt_neox import FAMILY

_NEOX = SHARED | {"model_type": "gpt_neox", "intermediate_size": 48}

CASES = {
    "parallel, a quarter of each head turns": _NEOX,
    "one after the other, whole heads, tied": _NEOX
    | {
        "use_parallel_residual": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0},
    },
    "no bias in attention, tanh": _NEOX | {"attention_bias": False, "hidden_act": "gelu_fast"},
}
REFUSED = {"rope scaling of other kinds": {"rope_scaling": {"type": "ntk", "factor": 2.0}}}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_names_and_config_of_the_published_files(tmp_path):
    theirs = random_model(_NEOX)
    theirs.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    new = FAMILY.read(raw)
    rope = raw.pop("rope_parameters")
    old = {"rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": rope["rope_theta"]}
    assert FAMILY.read(raw | old) == new and FAMILY.read(raw) == new
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.replace("lm_head", "embed_out"): tensor for name, tensor in tensors.items()}
    tensors["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 64, 64).tril()
    tensors["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    tensors["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(1)
    assert "embed_out.weight" in tensors
    save_file(tensors, tmp_path / "model.safetensors")
    assert gap(load(tmp_path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4
