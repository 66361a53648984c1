"""How often the blocks of a trunk run: the interface of schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One run of a block: its number, and how many times it has run before in this forward pass."""

    block: int
    loop: int = 0


class Schedule(ABC):
    """The steps of a forward pass. Each step has a state of its own, so that every pass of a loop keeps its own keys.

    The law: nobody but the trunk calls a block, and it does so in this order.
    """

    @abstractmethod
    def steps(self, blocks: int) -> tuple[Step, ...]: ...
