"""Two bits: exact on four levels, packed four in a byte, three bits a number with its scales."""

import pytest
import torch

from assay.core.errors import AssayError
from assay.efficiency.quantize.int2 import Int2


def test_four_evenly_spaced_levels_are_exact_whatever_their_place():
    levels = torch.tensor([-1.0, 0.5, 2.0, 3.5])
    x = levels[torch.randint(4, (5, 64), generator=torch.Generator().manual_seed(0))]
    x[:, :4], x[:, 32:36] = levels, levels
    assert torch.equal(Int2().decode(Int2().encode(x)), x)


def test_four_codes_share_a_byte_the_first_in_the_lowest_bits():
    codes = Int2(group=8).encode(torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 0.0])).parts["codes"]
    assert codes.tolist() == [0b11100100, 0b00011011] and codes.dtype == torch.uint8


def test_no_number_is_further_off_than_half_a_step():
    x = torch.randn(7, 128, generator=torch.Generator().manual_seed(1))
    step = (x.unflatten(-1, (-1, 32)).amax(-1) - x.unflatten(-1, (-1, 32)).amin(-1)) / 3
    off = (Int2().decode(Int2().encode(x)) - x).abs().unflatten(-1, (-1, 32)).amax(-1)
    assert (off <= step / 2 + 2e-3).all() and (off > step / 4).any()


def test_bits_a_number_scales_included():
    x = torch.randn(64, 256)
    assert Int2().encode(x).bytes * 8 / x.numel() == 3
    assert Int2(group=128).encode(x).bytes * 8 / x.numel() == 2.25


def test_axes_that_do_not_fill_bytes_are_refused():
    with pytest.raises(AssayError, match="group=6 does not fill whole bytes of 4 codes"):
        Int2(group=6)
    with pytest.raises(AssayError, match="axis of 6 does not fill whole bytes of 4 codes"):
        Int2(group=0).encode(torch.zeros(2, 6))
