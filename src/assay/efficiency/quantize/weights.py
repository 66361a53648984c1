"""A model whose linear layers hold their weights in a number format."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.format import Encoded, Format
from assay.core.linear import Linear, product
from assay.core.transformer import Transformer


class FormatLinear(nn.Module):
    """A linear layer whose weight exists only as codes; it is decoded for each product. Only the forward pass is quantised."""

    def __init__(self, linear: Linear, format: Format) -> None:
        super().__init__()
        self.format = format
        for name, tensor in format.encode(linear.weight.detach()).parts.items():
            self.register_buffer(f"weight_{name}", tensor)
        self.names = [name.removeprefix("weight_") for name, _ in self.named_buffers()]
        self.bias = linear.bias

    @property
    def weight(self) -> Float[Tensor, "out inputs"]:
        return self.format.decode(Encoded({name: getattr(self, f"weight_{name}") for name in self.names}))

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        y = product(x, self.weight)
        return y if self.bias is None else y + self.bias


@torch.no_grad()
def quantize_weights(model: Transformer, format: Format) -> Transformer:
    """A copy of the model with every linear layer's weight (not embeddings) in this format; the original is untouched."""
    made = copy.deepcopy(model)
    for module in list(made.modules()):
        for name, child in module.named_children():
            if isinstance(child, Linear):
                setattr(module, name, FormatLinear(child, format))
    return made


def weight_bytes(model: Transformer) -> int:
    """Bytes of all parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])
