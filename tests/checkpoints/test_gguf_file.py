"""GGUF files: every value type, every common quantisation, and files that are not what they say."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from assay.checkpoints.gguf_file import GGUFFile
from assay.core.errors import AssayError


def _file(path, *, tensors=(), metadata=()):
    writer = GGUFWriter(path, "llama")
    for add, key, value in metadata:
        getattr(writer, add)(key, value)
    for name, array, kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def plain(tmp_path):
    tensors = [("a", np.arange(12, dtype=np.float32).reshape(3, 4), None), ("b", np.ones(5, np.float32), None)]
    return _file(tmp_path / "plain.gguf", tensors=tensors)


def test_metadata_of_every_type(tmp_path):
    given = [
        ("add_uint8", "u8", 200), ("add_int8", "i8", -3), ("add_uint16", "u16", 60000), ("add_int16", "i16", -300),
        ("add_uint32", "u32", 4_000_000_000), ("add_int32", "i32", -5), ("add_float32", "f32", 0.5), ("add_bool", "yes", True),
        ("add_uint64", "u64", 1 << 40), ("add_int64", "i64", -(1 << 40)), ("add_float64", "f64", 0.1), ("add_string", "text", "héllo"),
        ("add_array", "words", ["a", "bé", ""]), ("add_array", "numbers", [1, -2, 3]), ("add_array", "truths", [True, False]),
    ]  # fmt: skip
    read = GGUFFile(_file(tmp_path / "all.gguf", metadata=given)).metadata
    for _, key, value in given:
        found = read[key].tolist() if isinstance(read[key], np.ndarray) else read[key]
        assert found == value and type(found) is type(value)


def test_tensors_have_their_torch_shape(plain):
    file = GGUFFile(plain)
    assert file.tensors["a"].shape == (3, 4) and list(file.tensors) == ["a", "b"]
    assert np.array_equal(file.read("a"), np.arange(12).reshape(3, 4)) and file.read("b").tolist() == [1] * 5


def _kinds(dequantised: bool) -> list[GGMLQuantizationType]:
    """All types of GGUF that the `gguf` package can turn into numbers, or those that it cannot."""

    def can(kind: GGMLQuantizationType) -> bool:
        _, size = GGML_QUANT_SIZES[kind]
        try:
            dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            return False
        return True

    return [kind for kind in GGML_QUANT_SIZES if can(kind) == dequantised]


def _quantised(kind: GGMLQuantizationType, rows: int) -> np.ndarray:
    """Rows of 512 numbers as the package quantises them; where it cannot, random blocks."""
    draw = np.random.default_rng(0)
    block, size = GGML_QUANT_SIZES[kind]
    try:
        return quantize(draw.standard_normal((rows, 512), np.float32), kind)
    except NotImplementedError:
        return draw.integers(0, 60, (rows, 512 // block * size), dtype=np.uint8)


def test_the_package_dequantises_what_is_found_in_files():
    names = {kind.name for kind in _kinds(True)}
    assert set("F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 MXFP4".split()) <= names
    assert set("IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS".split()) <= names


@pytest.mark.parametrize("kind", _kinds(True), ids=lambda kind: kind.name)
def test_every_type_loads_as_the_package_dequantises_it(kind, tmp_path):
    raw = _quantised(kind, 2500)
    path = _file(tmp_path / "quantised.gguf", tensors=[("w", raw, kind)])
    wanted = dequantize(raw, kind)
    assert wanted.shape == (2500, 512) and np.nanstd(wanted) > 0
    file = GGUFFile(path)
    assert file.tensors["w"].shape == (2500, 512) and file.tensors["w"].kind == kind
    found = file.read("w")
    assert found.dtype == np.float32 and np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize("kind", _kinds(False), ids=lambda kind: kind.name)
def test_types_that_hold_no_weights_are_named(kind, tmp_path):
    block, size = GGML_QUANT_SIZES[kind]
    path = _file(tmp_path / "odd.gguf", tensors=[("w", np.zeros((2, 256 // block * size), np.uint8), kind)])
    with pytest.raises(AssayError, match=f"tensor w is stored as {kind.name}, which cannot be dequantised"):
        GGUFFile(path).read("w")


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(AssayError, match=r"cannot read .*none.gguf: No such file"):
        GGUFFile(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(AssayError, match=r"cannot read .*empty.gguf"):
        GGUFFile(tmp_path / "empty.gguf")


@pytest.mark.parametrize("length", [5, 30, 60, 120])
def test_a_header_that_ends_early(plain, length):
    plain.write_bytes(plain.read_bytes()[:length])
    with pytest.raises(AssayError, match="truncated or corrupt"):
        GGUFFile(plain)


def test_tensors_that_end_early(plain):
    plain.write_bytes(plain.read_bytes()[:-40])
    with pytest.raises(AssayError, match=r"is truncated: tensor b ends \d+ bytes after the end of the file"):
        GGUFFile(plain)


@pytest.mark.parametrize(
    ("at", "put", "why"),
    [
        (0, b"ABCD", "does not begin with the GGUF mark"),
        (4, struct.pack("<I", 9), "version 9 is not 2 or 3"),
        (4, struct.pack(">I", 3), "is not 2 or 3"),
        (8, struct.pack("<Q", 1 << 50), "announces"),
        (24, struct.pack("<Q", 1 << 60), "a string runs past the end"),
        (32, b"\xff\xfe\xff\xfe", "not UTF-8"),
        (52, struct.pack("<I", 99), "unknown value type 99"),
    ],
)
def test_a_header_with_nonsense(plain, at, put, why):
    data = bytearray(plain.read_bytes())
    data[at : at + len(put)] = put
    plain.write_bytes(data)
    with pytest.raises(AssayError, match=why):
        GGUFFile(plain)


def test_any_changed_byte_is_read_or_refused_in_one_line(plain):
    original = plain.read_bytes()
    for at in range(0, 220, 3):
        data = bytearray(original)
        data[at] ^= 0xFF
        plain.write_bytes(data)
        try:
            file = GGUFFile(plain)
            for name in file.tensors:
                file.read(name)
        except AssayError as error:
            assert "\n" not in str(error)
