"""Take what passes a site apart into few of many directions: a sparse autoencoder.

z = topk(relu(W_e (x - b_d) + b_e)), x̂ = W_d z + b_d, with columns of W_d of length one. Trained on the squared error alone;
features that no longer fire learn from what the others leave over (the auxiliary loss of the paper, appendix A.2).
x: "n dim", vectors from any site (`collect`); z: "n features", at most k of them above zero.

    vectors = collect(model, "blocks.0.attn.state", batches, axes=(-2, -1), piece=1)
    sae = train_sae(vectors, features=512, k=16)
    with edit(model, {"blocks.0.attn.state": sae.splice((-2, -1))}): ...

seam: instrument
row: -
source: Gao et al. 2024, Scaling and evaluating sparse autoencoders (arXiv:2406.04093)
object: SAE
aliases: topk_sae
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.analysis.inspect.common import restored, vectors
from assay.checkpoints.safetensors_files import atomically
from assay.core.errors import AssayError
from assay.training import Training, learning_rate_at
from assay.training.progress import Progress

WEIGHTS, CONFIG = "sae_weights.safetensors", "cfg.json"


class SAE(nn.Module):
    """`W_enc`: "dim features"; `W_dec`: "features dim", its rows the directions, of length one."""

    def __init__(self, dim: int, features: int, k: int) -> None:
        super().__init__()
        if not 1 <= k <= features or dim < 1:
            raise AssayError(f"dim={dim}, features={features}, k={k}: k must lie in 1..features, and dim be at least 1")
        self.dim, self.features, self.k = dim, features, k
        self.W_enc, self.b_enc = nn.Parameter(torch.zeros(dim, features)), nn.Parameter(torch.zeros(features))
        self.W_dec, self.b_dec = nn.Parameter(torch.zeros(features, dim)), nn.Parameter(torch.zeros(dim))

    def before_choice(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n features"]:
        """relu(W_e (x - b_d) + b_e), of which the largest are kept. Raises AssayError for vectors of another width."""
        if x.shape[-1] != self.dim:
            raise AssayError(
                f"this SAE is {self.dim} wide, the vectors given are {x.shape[-1]}; choose its site and axes"
            )
        return ((x - self.b_dec) @ self.W_enc + self.b_enc).relu()

    def encode(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n features"]:
        """z: at most k features of each vector above zero."""
        return largest(self.before_choice(x), self.k)

    def decode(self, z: Float[Tensor, "n features"]) -> Float[Tensor, "n dim"]:
        """x̂ = W_d z + b_d."""
        return z @ self.W_dec + self.b_dec

    def forward(self, x: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        return self.decode(self.encode(x))

    def splice(self, axes: Sequence[int] = (-1,)) -> Callable[[Tensor], Tensor]:
        """A function for `edit`: what passes the site is replaced by its reconstruction. `axes` as in `collect`."""
        return lambda x: restored(self(vectors(x, axes).to(self.b_dec)), x, axes)

    def save(self, folder: str | Path) -> Path:
        """Write the weights as safetensors and the sizes as JSON into a new folder. Raises AssayError where it is there already."""
        from safetensors.torch import save_file

        target = Path(folder).expanduser()
        if target.exists():
            raise AssayError(f"{target} is there already and is not overwritten; name a new folder")
        target.mkdir(parents=True)
        tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in self.state_dict().items()}
        atomically(target / WEIGHTS, lambda path: save_file(tensors, path))
        sizes = {"architecture": "topk", "d_in": self.dim, "d_sae": self.features, "k": self.k}
        atomically(target / CONFIG, lambda path: path.write_text(json.dumps(sizes, indent=1)))
        return target

    @staticmethod
    def load(folder: str | Path) -> SAE:
        """What `save` wrote. Raises AssayError where a file is missing, corrupt, or of other sizes than the JSON says."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        source = Path(folder).expanduser()
        try:
            sizes = json.loads((source / CONFIG).read_text())
            tensors = load_file(source / WEIGHTS)
            if sizes["architecture"] != "topk":
                raise AssayError(f"{source}: an SAE of architecture {sizes['architecture']!r}; only topk can be read")
            sae = SAE(sizes["d_in"], sizes["d_sae"], sizes["k"])
            sae.to(tensors["W_dec"].dtype).load_state_dict(tensors)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise AssayError(f"{source} holds no SAE that can be read: {' '.join(str(error).split())}") from None
        return sae.requires_grad_(False)


def largest(z: Float[Tensor, "n features"], k: int) -> Float[Tensor, "n features"]:
    """The k largest of each row; zero elsewhere."""
    values, at = z.topk(k, -1)
    return torch.zeros_like(z).scatter(-1, at, values)


def train_sae(
    activations: Float[Tensor, "n dim"],
    *,
    features: int,
    k: int,
    training: Training | None = None,
    batch: int = 256,
    seed: int = 0,
    dead_after: int = 200,
    auxiliary: float = 1 / 32,
) -> SAE:
    """Fit an SAE; the same seed gives the same weights. Weights do not decay.

    `dead_after`: steps without firing after which a feature learns from the auxiliary loss, whose weight is `auxiliary`.
    It helps where features missed directions that are there; where more features than directions are asked for, some stay dead.
    Raises AssayError for vectors that are fewer than two, all alike or not finite, and when the loss stops being a number.
    """
    training = training or Training(2000, learning_rate=3e-3)
    activations = activations if activations.dtype == torch.float64 else activations.float()
    mean, scale = _spread(activations)
    generator = torch.Generator().manual_seed(seed)
    sae = _started(activations.shape[-1], features, k, generator).to(activations)
    optimiser = torch.optim.Adam(sae.parameters(), lr=training.learning_rate, betas=training.betas)
    silent = torch.zeros(features, dtype=torch.long, device=activations.device)
    with torch.enable_grad(), Progress("training an SAE", training.steps) as progress:
        for step in range(training.steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate_at(
                    step,
                    steps=training.steps,
                    peak=training.learning_rate,
                    warmup=training.warmup,
                    final=training.final,
                )
            rows = torch.randint(len(activations), (batch,), generator=generator).to(activations.device)
            x = (activations[rows] - mean) / scale
            loss, fired = _loss(sae, x, silent >= dead_after, auxiliary)
            if not loss.isfinite():
                raise AssayError(f"the loss of the SAE became {loss.item()} at step {step}; lower the learning rate")
            _step(sae, optimiser, loss, training.clip)
            silent = torch.where(fired, 0, silent + 1)
            progress.advance(f"squared error {loss.item():.3f}")
    with torch.no_grad():  # the map is homogeneous, so the scale of the vectors moves into the biases
        sae.b_enc.mul_(scale)
        sae.b_dec.mul_(scale).add_(mean)
    return sae.requires_grad_(False)


def _spread(activations: Tensor) -> tuple[Float[Tensor, "dim"], Float[Tensor, ""]]:
    """Their mean, and what to divide by so that coordinates have variance one on average."""
    if activations.ndim != 2 or len(activations) < 2 or not activations.isfinite().all():
        raise AssayError(
            f"an SAE learns from at least two finite vectors (n, dim), not from {tuple(activations.shape)}"
        )
    mean = activations.mean(0)
    scale = (activations - mean).square().mean().sqrt()
    if scale <= 1e-12 * (1 + mean.abs().max()):
        raise AssayError("an SAE learns from vectors that differ; these are all alike")
    return mean, scale


def _started(dim: int, features: int, k: int, generator: torch.Generator) -> SAE:
    sae = SAE(dim, features, k)
    drawn = torch.randn(features, dim, generator=generator)
    with torch.no_grad():
        sae.W_dec.copy_(drawn / drawn.norm(dim=1, keepdim=True))
        sae.W_enc.copy_(sae.W_dec.T)
    return sae


def _loss(sae: SAE, x: Tensor, dead: Tensor, auxiliary: float) -> tuple[Float[Tensor, ""], Tensor]:
    """Squared error a coordinate, with that of the dead features' own attempt at what is left over; which features fired."""
    before = sae.before_choice(x)
    z = largest(before, sae.k)
    left = x - sae.decode(z)
    loss = left.square().mean()
    few = min(int(dead.sum()), max(1, sae.dim // 2))
    if few:
        attempt = largest(torch.where(dead, before, 0), few) @ sae.W_dec
        target = left.detach()
        loss = loss + auxiliary * (target - attempt).square().mean() / target.square().mean().clamp(min=1e-12)
    return loss, (z > 0).any(0)


def _step(sae: SAE, optimiser: torch.optim.Optimizer, loss: Tensor, clip: float) -> None:
    """One step that moves no direction along itself, and brings directions back to length one."""
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    along = (sae.W_dec.grad * sae.W_dec).sum(1, keepdim=True)
    sae.W_dec.grad -= along.detach() * sae.W_dec.detach()
    nn.utils.clip_grad_norm_(sae.parameters(), clip)
    optimiser.step()
    with torch.no_grad():
        sae.W_dec.div_(sae.W_dec.norm(dim=1, keepdim=True))
