"""What formats share."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.errors import AssayError


def grouped(x: Float[Tensor, "*rest dim"], group: int) -> Float[Tensor, "*rest groups group"]:
    """The last axis cut into groups of neighbours; 0 makes one group of it."""
    whole("number format", 0, group=group)
    size = group or x.shape[-1]
    if x.shape[-1] % size:
        raise AssayError(f"groups of {size} do not divide an axis of {x.shape[-1]}: choose a group that does, or 0")
    return x.unflatten(-1, (-1, size))
