"""The frame of mixers whose memory of the past is a matrix a head: state, padding and cost are the same for all of them."""

from __future__ import annotations

from abc import abstractmethod
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.mixer import Cost, Mixer
from assay.parts.mixers.common import Packing, RecurrentState


class RecurrentMixer(Mixer):
    """A subclass has an `out` projection and says what its state holds, what one token multiplies, and how tokens mix."""

    out: Linear
    products: int  # multiplications of one token beside the projections

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the state's tensors, for one sequence."""

    @abstractmethod
    def mix(
        self,
        x: Float[Tensor, "batch tokens width"],
        held: RecurrentState,
        packing: Packing,
        positions: Int[Tensor, "batch tokens"],
    ) -> tuple[Float[Tensor, "batch tokens width"], dict[str, Tensor]]:
        """Outputs and the state's new tensors, from packed tokens. What padding would write is for `mix` to silence."""

    def start(self, batch: int) -> RecurrentState:
        # codes of quantised layers decode to float32, whatever the model computes in: its plain parameters tell
        plain = (p for p in self.parameters() if p.is_floating_point())
        like = wide(next(plain, self.out.weight))
        held = {name: like.new_zeros(batch, *shape) for name, shape in self.shapes().items()}
        return RecurrentState(batch, like.device, **held)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: RecurrentState | None = None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], RecurrentState | None]:
        held = self.start(len(x)) if state is None else state
        packing = Packing(valid)
        packed = packing.pack(positions[..., None])[..., 0]
        y, changed = self.mix(packing.pack(x), held, packing, packed)
        if state is not None:
            state.advance(x.shape[1], valid, **changed)
        return packing.unpack(y), state

    def cost(self, tokens: int) -> Cost:
        a_token = sum(m.weight.numel() for m in self.modules() if isinstance(m, Linear)) + self.products
        state = sum(prod(shape) for shape in self.shapes().values()) * wide(self.out.weight).element_size()
        return Cost(sum(p.numel() for p in self.parameters()), 2 * tokens * a_token, state)


def by_head(x: Float[Tensor, "batch tokens width"], heads: int) -> Float[Tensor, "batch heads tokens dim"]:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Float[Tensor, "batch heads tokens dim"]) -> Float[Tensor, "batch tokens width"]:
    return x.transpose(1, 2).flatten(2)


def dim_of_head(width: int, heads: int, head_dim: int | None) -> int:
    """`head_dim`, or an even share of the width. Raises AssayError where there is none."""
    if head_dim is None and width % heads:
        raise AssayError(f"width {width} does not divide into {heads} heads: give head_dim")
    return head_dim or width // heads


def widened(part: str, key_dim: int, expand: float) -> int:
    """value_dim, `expand` times key_dim. Raises AssayError where nothing is left of it."""
    if int(key_dim * expand) < 1:
        raise AssayError(
            f"{part}: expand={expand} leaves no value of {key_dim} numbers; give at least {1 / key_dim:.3g}"
        )
    return int(key_dim * expand)


def draw_xavier(module: nn.Module, gain: float) -> None:
    """Uniform within gain sqrt(6 / (inputs + outputs)), for every matrix within."""
    for inner in module.modules():
        if isinstance(inner, Linear):
            nn.init.xavier_uniform_(inner.weight, gain)


def inverse_softplus_of_steps(count: int, low: float = 0.001, high: float = 0.1) -> Float[Tensor, "count"]:
    """Biases whose softplus is spread evenly over the orders of magnitude between two step sizes."""
    step = torch.empty(count).uniform_(0, 1).mul(torch.tensor(high / low).log()).exp() * low
    return step + torch.log(-torch.expm1(-step))
