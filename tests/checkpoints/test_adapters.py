"""LoRA: merged as by hand, in every layout; what is no plain LoRA is refused by name; names of a base and its adapter."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.families import test_falcon, test_gpt2, test_llama, test_phi3
from tests.checkpoints.parity import gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import load, save
from assay.checkpoints.families.llama import FAMILY
from assay.core.errors import AssayError

_LLAMA = test_llama.CASES["2"] | {"num_key_value_heads": 2}
_TOKENS = torch.arange(30)[None] * 7 % 96
_MODULES = {
    "llama": (_LLAMA, ["model.layers.0.self_attn.q_proj", "model.layers.2.mlp.down_proj", "model.layers.1.self_attn.v_proj"]),
    "gpt2": (test_gpt2.CASES["tied"], ["transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_proj", "transformer.h.2.mlp.c_fc"]),
    "phi3": (test_phi3.CASES["grouped"], ["model.layers.0.self_attn.qkv_proj", "model.layers.1.mlp.gate_up_proj"]),
    "falcon": (
        test_falcon.CASES["40B: two key-value heads, two norms"],
        ["transformer.h.0.self_attention.query_key_value", "transformer.h.1.mlp.dense_4h_to_h"],
    ),
}  # fmt: skip


def _base(folder, config=_LLAMA):
    theirs = random_model(config)
    theirs.save_pretrained(folder)
    return theirs


def _adapter(folder, theirs, modules, *, rank=3, seed=0, **entries):
    """An adapter of random A and B, (out, in) whatever the module stores."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in modules:
        weight = theirs.get_submodule(name).weight
        outputs, inputs = weight.shape[::-1] if type(theirs.get_submodule(name)).__name__ == "Conv1D" else weight.shape
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.1
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "bias": "none"} | entries
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return tensors


def _by_hand(theirs, tensors, scale):
    """W + scale * B A on transformers' model itself."""
    with torch.no_grad():
        for key, down in tensors.items():
            if ".lora_A" in key:
                module = theirs.get_submodule(key.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
                change = (scale if isinstance(scale, float) else scale(key)) * tensors[key.replace("_A", "_B")] @ down
                module.weight += change.T if type(module).__name__ == "Conv1D" else change
    return theirs


@pytest.mark.parametrize("family", _MODULES)
@pytest.mark.parametrize("flag", [False, True])
def test_merging_is_adding_the_product_by_hand(tmp_path, family, flag):
    config, modules = _MODULES[family]
    theirs = _base(tmp_path / "base", config)
    plain = theirs(_TOKENS).logits
    tensors = _adapter(tmp_path / "lora", theirs, modules, fan_in_fan_out=flag)
    model = load(tmp_path / "base", adapter=tmp_path / "lora")
    wanted = _by_hand(theirs, tensors, 6 / 3)(_TOKENS).logits
    assert gap(plain, wanted) > 0.1
    assert gap(model(_TOKENS)[0], wanted) < 1e-4
    assert model.name == "base+lora"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_peft_wrote_gives_the_logits_that_peft_gave(name):
    """Ranks and alphas by module, embeddings, rank-stabilised scales, turned matrices: see tests/fixtures/make_lora.py."""
    folder = Path(__file__).parents[1] / "fixtures" / "lora" / name
    wanted = json.loads((folder / "logits.json").read_text())
    tokens, logits = torch.tensor(wanted["tokens"]), torch.tensor(wanted["logits"])
    model = load(folder / "adapter")
    assert model.name == "base+adapter"
    assert gap(load(folder / "base")(tokens)[0], logits) > 1
    assert gap(model(tokens)[0], logits) < 1e-4


def test_a_resized_embedding_that_comes_along_is_refused(tmp_path):
    theirs = _base(tmp_path / "base")
    _adapter(tmp_path / "lora", theirs, ["lm_head"])
    more = {"base_model.model.lm_head.base_layer.weight": torch.zeros(99, 32)}
    _rewrite(tmp_path / "lora", lambda tensors: tensors | more)
    with pytest.raises(AssayError, match=r"brings a matrix of its own, \(99, 32\), that base has no place for"):
        load(tmp_path / "base", adapter=tmp_path / "lora")


def test_rank_stabilised_and_per_module_scales(tmp_path):
    theirs = _base(tmp_path / "base")
    names = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"]
    tensors = _adapter(
        tmp_path / "lora", theirs, names, use_rslora=True, alpha_pattern={r"layers\.1\.self_attn.q_proj": 9}
    )
    model = load(tmp_path / "base", adapter=tmp_path / "lora")
    wanted = _by_hand(theirs, tensors, lambda key: (9 if "1.self" in key else 6) / math.sqrt(3))
    assert gap(model(_TOKENS)[0], wanted(_TOKENS).logits) < 1e-4


def test_a_rank_that_the_config_does_not_say_is_refused_and_one_that_it_does_taken(tmp_path):
    theirs = _base(tmp_path / "base")
    tensors = _adapter(tmp_path / "lora", theirs, ["model.layers.0.self_attn.q_proj"], r=8)
    with pytest.raises(AssayError, match="q_proj has rank 3, and adapter_config.json says 8"):
        load(tmp_path / "base", adapter=tmp_path / "lora")
    path = tmp_path / "lora" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rank_pattern": {"q_proj": 3}}))
    wanted = _by_hand(theirs, tensors, 6 / 3)(_TOKENS).logits
    assert gap(load(tmp_path / "base", adapter=tmp_path / "lora")(_TOKENS)[0], wanted) < 1e-4


def test_an_adapter_of_an_untied_embedding(tmp_path):
    theirs = _base(tmp_path / "base")
    _adapter(tmp_path / "lora", theirs, ["lm_head"])
    tensors = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    a, b = torch.randn(3, 96), torch.randn(32, 3)
    prefix = "base_model.model.model.embed_tokens.lora_embedding_"
    save_file(tensors | {prefix + "A": a, prefix + "B": b}, tmp_path / "lora" / "adapter_model.safetensors")
    model = load(tmp_path / "base", adapter=tmp_path / "lora")
    _by_hand(theirs, tensors, 2.0)
    with torch.no_grad():
        theirs.model.embed_tokens.weight += 2 * (b @ a).T
        assert gap(model(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_a_gguf_base_takes_the_same_adapter(tmp_path, own_cache):
    theirs = _base(tmp_path / "base")
    metadata = test_llama._METADATA | {"rope.freq_base": 10_000.0}
    path = write_gguf(
        tmp_path / "tiny.gguf", *gguf_of(load(tmp_path / "base"), FAMILY, metadata, test_llama._neighbours)
    )
    tensors = _adapter(tmp_path / "lora", theirs, _MODULES["llama"][1])
    wanted = _by_hand(theirs, tensors, 2.0)(_TOKENS).logits
    assert gap(load(f"{path}+{tmp_path / 'lora'}")(_TOKENS)[0], wanted) < 1e-4
    assert gap(load(path)(_TOKENS)[0], wanted) > 0.1, "the converted copy stays as it was"


def test_names(tmp_path, monkeypatch):
    theirs = _base(tmp_path / "base")
    first = _adapter(tmp_path / "one", theirs, _MODULES["llama"][1], base_model_name_or_path=str(tmp_path / "base"))
    second = _adapter(tmp_path / "two", theirs, _MODULES["llama"][1], seed=5, base_model_name_or_path="../base")
    monkeypatch.chdir(tmp_path)
    once, twice = load("base+one"), load("./base+./one + ./two")
    assert (once.name, twice.name) == ("base+one", "base+one+two")
    assert torch.equal(load("one")(_TOKENS)[0], once(_TOKENS)[0])
    assert load("two").name == "base+two"
    assert torch.equal(load("one", adapter="two")(_TOKENS)[0], twice(_TOKENS)[0])
    _by_hand(_by_hand(theirs, first, 2.0), second, 2.0)
    assert gap(twice(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4
    again = load(save(twice, tmp_path / "made"))
    assert torch.equal(again(_TOKENS)[0], twice(_TOKENS)[0])


def test_a_folder_whose_name_holds_a_plus_is_a_folder(tmp_path):
    _base(tmp_path / "a+b")
    assert load(tmp_path / "a+b").name == "a+b"


def test_bfloat16(tmp_path):
    theirs = _base(tmp_path / "base")
    _adapter(tmp_path / "lora", theirs, _MODULES["llama"][1])
    small, whole = (load(tmp_path / "base", adapter=tmp_path / "lora", dtype=d) for d in ("bfloat16", "float32"))
    assert small.blocks[0].mixer.q.weight.dtype == torch.bfloat16
    wanted = whole.blocks[0].mixer.q.weight
    torch.testing.assert_close(small.blocks[0].mixer.q.weight.float(), wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"bias": "lora_only"}, "bias='lora_only' is not supported"),
        ({"lora_bias": True}, "lora_bias=True is not supported"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save=\['lm_head'\] is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' is not supported"),
        ({"layer_replication": [[0, 2], [1, 3]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"an_entry_of_tomorrow": {"a": 1}}, "an_entry_of_tomorrow"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path, entries, why):
    _adapter(tmp_path / "lora", _base(tmp_path / "base"), _MODULES["llama"][1], **entries)
    with pytest.raises(AssayError, match=why):
        load(tmp_path / "base", adapter=tmp_path / "lora")


def _rewrite(folder, change):
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda t: {k.replace("q_proj", "x_proj"): v for k, v in t.items()}, "has no module model.layers.0.self_attn.x_proj"),
        (lambda t: {k.replace("layers.0", "layers.9"): v for k, v in t.items()}, "has no module model.layers.9"),
        (lambda t: {k: v for k, v in t.items() if "q_proj.lora_B" not in k}, "q_proj has no A and B of one rank"),
        (lambda t: {k: v[:, :9].clone() if "q_proj.lora_A" in k else v for k, v in t.items()}, r"shape \(32, 9\), which does not fit"),
        (lambda t: t | {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(32)}, "is no A or B"),
        (lambda t: t | {"base_model.model.model.norm.weight": torch.ones(32)}, "model.norm.weight is no A or B"),
        (lambda t: {}, "is empty"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_belong_are_named_and_nothing_changes(tmp_path, change, why):
    from assay.checkpoints.adapters import merge

    _adapter(tmp_path / "lora", _base(tmp_path / "base"), _MODULES["llama"][1])
    _rewrite(tmp_path / "lora", change)
    model = load(tmp_path / "base")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with pytest.raises(AssayError, match=why):
        merge(model, tmp_path / "lora")
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_an_embedding_that_is_the_readout_too_is_not_changed(tmp_path):
    theirs = _base(tmp_path / "base", _LLAMA | {"tie_word_embeddings": True})
    for name in ("lm_head", "model.embed_tokens"):
        _adapter(tmp_path / name, theirs, [name])
        with pytest.raises(AssayError, match=f"it adapts {name}, which base uses as embedding and readout at once"):
            load(tmp_path / "base", adapter=tmp_path / name)


def test_adapters_without_a_base_or_weights(tmp_path):
    theirs = _base(tmp_path / "base")
    _adapter(tmp_path / "lora", theirs, _MODULES["llama"][1], base_model_name_or_path="someone/else")
    with pytest.raises(
        AssayError, match=r"is an adapter of someone/else, which is no folder here: name the base, as in"
    ):
        load(tmp_path / "lora")
    with pytest.raises(AssayError, match="base holds no adapter_config.json, so it is no adapter"):
        load(tmp_path / "base", adapter=tmp_path / "base")
    with pytest.raises(AssayError, match="none holds no adapter_config.json"):
        load(f"{tmp_path / 'base'}+{tmp_path / 'none'}")
    weights = tmp_path / "lora" / "adapter_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(AssayError, match="other files may run code when opened and are never read"):
        load(tmp_path / "base", adapter=tmp_path / "lora")


def test_a_base_that_is_two_is_not_guessed(tmp_path, monkeypatch):
    theirs = _base(tmp_path / "base")
    (tmp_path / "there").mkdir()
    _base(tmp_path / "there" / "base")
    _adapter(tmp_path / "there" / "lora", theirs, _MODULES["llama"][1], base_model_name_or_path="../base")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(
        AssayError, match=r"is an adapter of \.\./base, which is .*/base or .*/there/base: name the base"
    ):
        load("../there/lora")


def test_an_adapter_from_the_hub_says_what_it_is_of(tmp_path, monkeypatch):
    _adapter(tmp_path / "lora", _base(tmp_path / "base"), _MODULES["llama"][1], base_model_name_or_path="someone/else")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: str(tmp_path / "lora"))
    with pytest.raises(AssayError, match="is an adapter of someone/else"):
        load("someone/lora")


def test_only_models_of_a_family_take_adapters(tmp_path):
    from assay.checkpoints.adapters import merge

    theirs = _base(tmp_path / "base")
    _adapter(tmp_path / "lora", theirs, _MODULES["llama"][1])
    model = load(tmp_path / "base")
    del model.family
    with pytest.raises(AssayError, match="is of no family of checkpoints, so no adapter belongs to it"):
        merge(model, tmp_path / "lora")
