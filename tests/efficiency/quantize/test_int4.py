"""Four bits: packed two to a byte, half a step of error, and one clear line for groups that do not fit."""

from __future__ import annotations

import pytest
import torch

from assay.core.errors import AssayError
from assay.efficiency.quantize.int4 import Int4


def test_two_codes_share_a_byte_and_the_error_is_half_a_step():
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    encoded = Int4(group=32).encode(x)
    assert encoded.parts["codes"].shape == (3, 32)
    rows = x.unflatten(-1, (2, 32))
    step = (rows.amax(-1) - rows.amin(-1)) / 15
    wrong = (Int4(group=32).decode(encoded) - x).unflatten(-1, (2, 32)).abs().amax(-1)
    assert (wrong <= step * 0.52).all(), "half a step, and what float16 rounds off the offset and the scale"


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(AssayError, match="do not divide an axis of 40"):
        Int4(group=32).encode(torch.zeros(2, 40))
    with pytest.raises(AssayError, match="whole bytes of 2 codes"):
        Int4(group=3)
