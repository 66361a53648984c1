"""How well a reconstruction stands in for what passes a site: as vectors, and spliced into the running model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor

from assay.analysis.inspect.common import collect, differences
from assay.analysis.inspect.controls import random_directions
from assay.analysis.inspect.sae import SAE
from assay.core.errors import AssayError
from assay.core.transformer import Transformer


@dataclass(frozen=True)
class Evaluation:
    """How well an SAE stands in for what passes its site. Losses and divergences in nats a token.

    `recovered`: of the loss that zero-ablation costs, the share that the reconstruction saves; None where it costs nothing.
    `chance`: explained variance of as many random directions at the same k (`random_directions`).
    """

    site: str
    vectors: int
    features: int
    k: int
    explained_variance: float
    chance: float
    l0: float
    dead: int
    loss_clean: float
    loss_spliced: float
    loss_zero: float
    divergence_spliced: float
    divergence_zero: float

    @property
    def recovered(self) -> float | None:
        cost = self.loss_zero - self.loss_clean
        return (self.loss_zero - self.loss_spliced) / cost if cost > 0 else None

    def table(self) -> Table:
        table = Table(title=f"SAE at {self.site}, on {self.vectors} vectors", box=None, pad_edge=False)
        table.add_column("measure")
        table.add_column("value", justify="right")
        recovered = "- (zero-ablation costs none)" if self.recovered is None else f"{self.recovered:.1%}"
        for what, value in {
            "explained variance": f"{self.explained_variance:.3f}",
            "of random directions": f"{self.chance:.3f}",
            f"L0 (k = {self.k})": f"{self.l0:.2f}",
            "dead features": f"{self.dead} of {self.features}",
            "loss, clean": f"{self.loss_clean:.4f}",
            "loss, reconstruction spliced in": f"{self.loss_spliced:.4f}",
            "loss, zero-ablated": f"{self.loss_zero:.4f}",
            "loss recovered": recovered,
            "divergence from clean, spliced": f"{self.divergence_spliced:.4f}",
            "divergence from clean, zero-ablated": f"{self.divergence_zero:.4f}",
        }.items():
            table.add_row(what, value)
        return table


@torch.no_grad()
def evaluate(
    sae: SAE,
    model: Transformer,
    site: str,
    tokens_batches: Iterable[Int[Tensor, "batch tokens"]],
    *,
    axes: Sequence[int] = (-1,),
    piece: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """Measure an SAE on texts it was not trained on, alone and spliced into the model. Arguments as in `collect`.

    Raises AssayError where zero-ablation of the site changes no logit (a recurrent state that nobody reads on: give `piece`).
    """
    batches = list(tokens_batches)
    x = collect(model, site, batches, axes=axes, piece=piece).to(sae.b_dec)
    z = sae.encode(x)
    changes = {"spliced": sae.splice(axes), "zero": torch.zeros_like}
    found = differences(model, site, batches, changes, piece)
    if found["zero"][1] == 0:
        raise AssayError(
            f"zeros at {site} change no logit, so nothing reads on from there; a state is read on in pieces: give piece=1"
        )
    return Evaluation(
        site=site,
        vectors=len(x),
        features=sae.features,
        k=sae.k,
        explained_variance=explained_variance(x, sae.decode(z)),
        chance=random_directions(x, features=sae.features, k=sae.k, seed=seed),
        l0=(z > 0).sum(1).double().mean().item(),
        dead=int((~(z > 0).any(0)).sum()),
        loss_clean=found["clean"][0],
        loss_spliced=found["spliced"][0],
        loss_zero=found["zero"][0],
        divergence_spliced=found["spliced"][1],
        divergence_zero=found["zero"][1],
    )


def explained_variance(x: Float[Tensor, "n dim"], reconstruction: Float[Tensor, "n dim"]) -> float:
    """One minus the squared error over the squared distance from the mean; the mean itself gives 0."""
    return 1 - ((x - reconstruction).square().sum() / (x - x.mean(0)).square().sum()).item()
