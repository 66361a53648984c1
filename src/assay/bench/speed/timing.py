"""Clocks: seconds of a call, medians of calls that take turns, and how fast this machine reads memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

PROBE_BYTES = 512 << 20  # larger than what the caches of most machines hold


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call, until the device is done."""
    _synchronise()
    begin = time.perf_counter()
    call()
    _synchronise()
    return time.perf_counter() - begin


def taking_turns(sides: Mapping[str, Callable[[], list[float]]], rounds: int) -> dict[str, list[float]]:
    """Every side's samples over `rounds` rounds, in which each side goes once, so that a slow spell of the machine hits all.

    The order turns round every time. One round before them warms up and is not counted.
    """
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in sorted(sides, reverse=bool(turn % 2)):
            found = sides[name]()
            if turn:
                samples[name] += found
    return samples


def middle(samples: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    return {"median": median, "low": low, "high": high, "samples": len(samples)}


class Memory:
    """Reads a large block with all threads; `read()` gives bytes per second."""

    def __init__(self, bytes: int = PROBE_BYTES) -> None:
        # four rows a thread: each thread then sums whole rows, without a second pass over parts
        self.block = torch.ones(4 * torch.get_num_threads(), bytes // 16 // torch.get_num_threads())

    def read(self) -> float:
        size = self.block.numel() * self.block.element_size()
        return size / min(seconds(lambda: self.block.sum(1)) for _ in range(3))


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Run with so many threads (None: as many as there are now) and put the number back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
