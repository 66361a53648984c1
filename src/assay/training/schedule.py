"""The learning rate over a run: a linear warm-up, then half a cosine down to a share of the peak."""

import math


def learning_rate_at(step: int, *, steps: int, peak: float, warmup: int, final: float) -> float:
    """The rate of step `step` (from 0) of `steps`; the last step has `final` times the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return peak * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
