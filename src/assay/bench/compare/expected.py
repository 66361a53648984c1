"""How long cells should take, from a short probe of the model on this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from assay.bench.compare.plan import Cell, Plan
from assay.bench.compare.settings import Settings

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

PROBED = 256  # tokens


def expected_seconds(model: Transformer, plan: Plan, cells: Sequence[Cell], settings: Settings) -> dict[str, float]:
    """By cell name: what the cell should take. An example's prefill is counted with its first cell of a number format."""
    with torch.no_grad():
        reading, answering, step = _probe(model, min(PROBED, model.config.context // 2))
    expected, seen = {}, set()
    for cell in cells:
        prompt = plan.prompts[cell.task, cell.length][cell.example]
        seconds = (
            (len(prompt.question) + len(prompt.context) - prompt.prompted) * reading
            + len(prompt.answer) * answering
            + 4 * step
        )
        if cell.example < settings.speed_examples:
            seconds += (settings.speed_steps + 1) * step
        if settings.generate or plan.tasks[cell.task].any_order:
            seconds += prompt.example.meta.get("max_tokens", len(prompt.answer) + 8) * step
        held_in = plan.policies[cell.policy].held_in
        if settings.chunk or (cell.prompt, held_in) not in seen:  # in pieces, nothing that was read is shared
            seen.add((cell.prompt, held_in))
            seconds += prompt.prompted * reading
        expected[cell.name] = seconds
    return expected


def _probe(model: Transformer, tokens: int) -> tuple[float, float, float]:
    """Seconds a token of a prefill, a token with its logits, and a decoding step; the better of two tries."""
    ids = torch.arange(tokens, device=model.device)[None] % model.config.vocab_size
    tries = []
    for _ in range(2):
        state, times = model.start(1), [time.perf_counter()]
        for part, logits in ((ids, "none"), (ids[:, : max(1, tokens // 4)], "all"), (ids[:, :1], "last")):
            out, _ = model(part, state, logits=logits)
            float(state.seen[0] if out is None else out[0, -1, 0])  # waits for the device
            times.append(time.perf_counter())
        tries.append([b - a for a, b in itertools.pairwise(times)])
    reading, answering, step = map(min, zip(*tries, strict=True))
    return reading / tokens, answering / max(1, tokens // 4), step
