"""Starting weights for small models: every product keeps its input's size, and the residual stream grows slowly."""

from __future__ import annotations

import torch

from assay.core.linear import Embedding, Linear
from assay.core.transformer import Transformer


@torch.no_grad()
def initialise(model: Transformer, seed: int) -> Transformer:
    """Draw all linear and embedding weights anew from `seed`; norms and biases are left as they are.

    Linear: normal with deviation inputs^-1/2; what writes to the residual stream is divided by (2 * blocks)^1/2.
    Embeddings: deviation 1, or width^-1/2 where the table is also the read-out.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        if isinstance(module, Embedding):
            deviation = model.config.width**-0.5 if model.config.tied else 1.0
        elif isinstance(module, Linear):
            deviation = module.weight.shape[1] ** -0.5
            if name.endswith(("mixer.out", "channel.down")):
                deviation /= (2 * len(model.blocks)) ** 0.5
        else:
            continue
        drawn = torch.randn(module.weight.shape, generator=generator) * deviation
        module.weight.copy_(drawn.to(module.weight))
    return model
