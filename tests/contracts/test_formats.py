"""The law of number formats, for every registered one."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.under_test import parts

from assay.core import registry

SHAPES = [(64,), (3, 64), (2, 3, 5, 128)]
every_format = pytest.mark.parametrize("name", [card.name for card in parts("format")])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3 + 1


@every_format
@pytest.mark.parametrize("shape", SHAPES)
def test_decoding_gives_the_shape_back_and_is_near(name, shape):
    format, x = registry.get(name, "format")(), drawn(*shape)
    y = format.decode(format.encode(x))
    assert y.shape == x.shape
    assert y.dtype == torch.float32
    bits = format.encode(x).bytes * 8 / x.numel()  # scales included; a bit more halves what may be lost
    assert (y - x).norm() < 4.8 * 2**-bits * x.norm()
    assert not torch.equal(y, x), "a format that changes nothing saves nothing"


@every_format
def test_encoding_what_was_decoded_changes_nothing(name):
    format = registry.get(name, "format")()
    once = format.decode(format.encode(drawn(4, 64)))
    torch.testing.assert_close(format.decode(format.encode(once)), once, rtol=1e-3, atol=1e-3)


@every_format
def test_every_part_keeps_the_leading_axes_and_entries_do_not_touch_each_other(name):
    format, x = registry.get(name, "format")(), drawn(5, 7, 64)
    encoded = format.encode(x)
    assert all(part.shape[:2] == (5, 7) for part in encoded.parts.values())
    moved = type(encoded)({n: part[[3, 1]][:, [6, 0]] for n, part in encoded.parts.items()})
    torch.testing.assert_close(format.decode(moved), format.decode(encoded)[[3, 1]][:, [6, 0]], rtol=0, atol=0)


@every_format
def test_bytes_are_what_a_saved_file_holds_and_fewer(name, tmp_path):
    from safetensors.torch import save_file

    format, x = registry.get(name, "format")(), drawn(64, 128)
    encoded = format.encode(x)
    save_file({n: p.contiguous() for n, p in encoded.parts.items()}, tmp_path / "codes.safetensors")
    header = 8 + int.from_bytes((tmp_path / "codes.safetensors").read_bytes()[:8], "little")
    assert (tmp_path / "codes.safetensors").stat().st_size - header == encoded.bytes
    assert encoded.bytes < x.numel() * 4 / 2


@every_format
@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_constants_survive(name, value):
    format, x = registry.get(name, "format")(), torch.full((2, 64), value)
    torch.testing.assert_close(format.decode(format.encode(x)), x, rtol=1e-2, atol=1e-3)
