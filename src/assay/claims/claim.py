"""What a claim is, and how a function becomes one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from assay.claims.evidence import Evidence


@final
@dataclass(frozen=True)
class Claim:
    """A part's published statement as an experiment.

    `row` is the record's name, `minutes` how long the run takes on two cores, `seeds` the seeds that its arms share.
    """

    part: str
    row: str
    minutes: float
    seeds: tuple[int, ...]
    experiment: Callable[[Evidence], None]

    @property
    def says(self) -> str:
        """The first line of the experiment's docstring, or of its file's."""
        text = self.experiment.__doc__ or getattr(self.experiment, "__globals__", {}).get("__doc__") or ""
        return text.strip().partition("\n")[0]

    @property
    def file(self) -> str:
        return self.experiment.__code__.co_filename


def claim(part: str, *, row: str, minutes: float, seeds: int = 5) -> Callable[[Callable[[Evidence], None]], Claim]:
    """Make an experiment the claim of `part`: `@claim("random_attention", row="D21", minutes=2)`."""

    def register(experiment: Callable[[Evidence], None]) -> Claim:
        return Claim(part, row, minutes, tuple(range(seeds)), experiment)

    return register
