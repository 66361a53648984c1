"""The training loop: AdamW, warm-up and cosine, clipped gradients, the same numbers for the same seed.

A batch is a function of the step alone, so a run is a function of its settings alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import torch
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.transformer import Transformer
from assay.training.batch import Batch, masked_cross_entropy
from assay.training.progress import Progress
from assay.training.schedule import learning_rate_at


@dataclass(frozen=True)
class Training:
    """How to train. `warmup`: steps; `final`: last learning rate as a share of the peak; `clip`: the gradient's largest norm."""

    steps: int
    learning_rate: float = 1e-3
    warmup: int = 50
    final: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup < 0 or self.learning_rate <= 0 or self.clip <= 0:
            raise AssayError(
                f"steps={self.steps} and learning_rate={self.learning_rate} and clip={self.clip} must be positive,"
                f" warmup={self.warmup} not negative"
            )


@dataclass
class History:
    """What happened at each step: loss in nats, share of right answers, and the seconds the whole run took."""

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    seconds: float = 0.0


def train(
    model: Transformer,
    batch_at: Callable[[int], Batch],
    training: Training,
    *,
    says: str = "training",
    log: Path | None = None,
) -> History:
    """Train `model` in place on `batch_at(0) … batch_at(steps - 1)`. `log`: a file that gets one line of JSON a step.

    Raises AssayError when the loss stops being a number.
    """
    optimiser = torch.optim.AdamW(groups(model, training), lr=training.learning_rate, betas=training.betas)
    history, started = History(), perf_counter()
    model.train()
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(says, training.steps))
        file = stack.enter_context(log.open("a", encoding="utf-8")) if log else None
        for step in range(training.steps):
            rate = _set_rate(optimiser, training, step)
            loss, accuracy, norm = _step(model, optimiser, batch_at(step), training.clip)
            history.loss.append(loss)
            history.accuracy.append(accuracy)
            if not math.isfinite(loss):
                raise AssayError(f"{says}: the loss became {loss} at step {step}; lower the learning rate ({rate:g})")
            _write(file, step=step, loss=loss, accuracy=accuracy, gradient=norm, learning_rate=rate)
            progress.advance(f"loss {loss:.3f} · right {accuracy:.0%}")
    model.eval()
    history.seconds = perf_counter() - started
    return history


def groups(model: Transformer, training: Training) -> list[dict[str, Any]]:
    """Parameter groups: matrices of linear layers decay; norms, biases and embeddings do not."""
    decaying = [p for n, p in model.named_parameters() if p.ndim >= 2 and not n.startswith(("embed.", "positions."))]
    kept = {id(p) for p in decaying}
    rest = [p for p in model.parameters() if id(p) not in kept]
    return [{"params": decaying, "weight_decay": training.weight_decay}, {"params": rest, "weight_decay": 0.0}]


def _set_rate(optimiser: torch.optim.Optimizer, training: Training, step: int) -> float:
    rate = learning_rate_at(
        step, steps=training.steps, peak=training.learning_rate, warmup=training.warmup, final=training.final
    )
    for group in optimiser.param_groups:
        group["lr"] = rate
    return rate


def _step(
    model: Transformer, optimiser: torch.optim.Optimizer, batch: Batch, clip: float
) -> tuple[float, float, float]:
    logits, _ = model(batch.tokens)
    loss, accuracy = masked_cross_entropy(logits, batch)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    norm: Tensor = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()
    return loss.item(), accuracy.item(), norm.item()


def _write(file: TextIO | None, **record: float) -> None:
    if file is not None:
        file.write(json.dumps(record) + "\n")
        file.flush()
