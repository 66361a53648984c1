"""What one step learns from: tokens, and which of them are to be predicted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import AssayError


@dataclass(frozen=True)
class Batch:
    """`asked[b, t]`: token t of sequence b counts in the loss, predicted from the tokens before it (t = 0 never does)."""

    tokens: Int[Tensor, "batch tokens"]
    asked: Bool[Tensor, "batch tokens"]

    def __post_init__(self) -> None:
        if self.tokens.shape != self.asked.shape:
            raise AssayError(f"tokens {tuple(self.tokens.shape)} and asked {tuple(self.asked.shape)} differ in shape")
        if not bool(self.asked[:, 1:].any()):
            raise AssayError("a batch asks for no token: nothing could be learned from it")


def masked_cross_entropy(
    logits: Float[Tensor, "batch tokens vocab"], batch: Batch
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean cross-entropy in nats over the tokens asked for, and the share of them that the argmax gets right."""
    asked = batch.asked[:, 1:]
    wanted = batch.tokens[:, 1:][asked]
    given = logits[:, :-1][asked]
    right = (given.detach().argmax(-1) == wanted).to(torch.float32).mean()
    return F.cross_entropy(given.float(), wanted), right
