"""Folders of safetensors: one file and shards, mapped; missing, truncated and corrupt ones."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from assay.checkpoints import safetensors_files
from assay.checkpoints.safetensors_files import INDEX, SINGLE, SafetensorsFolder, atomically, write_safetensors
from assay.core.errors import AssayError

_TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.arange(5)}


@pytest.mark.parametrize("shard_bytes", [None, 30, 1])
def test_what_is_written_is_read(tmp_path, shard_bytes):
    write_safetensors(tmp_path, _TENSORS, shard_bytes)
    read = SafetensorsFolder(tmp_path)
    assert sorted(read.names()) == ["a", "b", "c"]
    assert all(torch.equal(read.read(name), tensor) for name, tensor in _TENSORS.items())
    assert len(list(tmp_path.glob("*.safetensors"))) == {None: 1, 30: 3, 1: 3}[shard_bytes]
    assert not list(tmp_path.glob(".*"))


def test_shards_have_the_index_that_others_read(tmp_path):
    write_safetensors(tmp_path, _TENSORS, 40)
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == 24 + 8 + 40
    assert {name: load_file(tmp_path / file)[name].tolist() for name, file in index["weight_map"].items()} == {
        name: tensor.tolist() for name, tensor in _TENSORS.items()
    }


def test_changing_a_read_tensor_does_not_change_the_file(tmp_path):
    write_safetensors(tmp_path, _TENSORS)
    SafetensorsFolder(tmp_path).read("a").zero_()
    assert torch.equal(SafetensorsFolder(tmp_path).read("a"), _TENSORS["a"])


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(AssayError, match="holds no model.safetensors$"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(AssayError, match=r"pytorch_model.bin, which may run code"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 30, -4])
def test_a_truncated_file(tmp_path, length):
    write_safetensors(tmp_path, _TENSORS)
    whole = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(whole[:length])
    with pytest.raises(AssayError, match=r"model.safetensors is truncated or corrupt"):
        SafetensorsFolder(tmp_path)


def test_a_corrupt_header(tmp_path):
    write_safetensors(tmp_path, _TENSORS)
    data = bytearray((tmp_path / SINGLE).read_bytes())
    data[9] = 0xFF
    (tmp_path / SINGLE).write_bytes(data)
    with pytest.raises(AssayError, match="truncated or corrupt"):
        SafetensorsFolder(tmp_path)


def test_a_missing_shard_and_an_index_that_is_wrong(tmp_path):
    write_safetensors(tmp_path, _TENSORS, 1)
    index = tmp_path / INDEX
    good = json.loads(index.read_text())
    index.write_text(json.dumps(good | {"weight_map": good["weight_map"] | {"d": good["weight_map"]["a"]}}))
    with pytest.raises(AssayError, match="names tensors that no shard holds: d"):
        SafetensorsFolder(tmp_path)
    index.write_text(json.dumps(good | {"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(AssayError, match="a shard outside the folder"):
        SafetensorsFolder(tmp_path)
    index.write_text(json.dumps(good))
    (tmp_path / good["weight_map"]["b"]).unlink()
    with pytest.raises(AssayError, match="shard model-00002-of-00003.safetensors named by .* is missing"):
        SafetensorsFolder(tmp_path)
    index.write_text("{")
    with pytest.raises(AssayError, match="is no index of safetensors"):
        SafetensorsFolder(tmp_path)


def test_nothing_half_written_when_the_disk_is_full(tmp_path):
    def write(path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(AssayError, match="cannot write .*: No space left on device"):
        atomically(tmp_path / "file", write)
    assert not list(tmp_path.iterdir())


def test_long_lists_are_cut():
    assert safetensors_files.listed([f"t{i}" for i in range(9)]) == "t0, t1, t2, t3, t4, t5 and 3 more"
