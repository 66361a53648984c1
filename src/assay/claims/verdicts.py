"""How a wanted side and an interval become a verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "differs", "inconclusive", "underpowered"]
VERDICTS: tuple[Verdict, ...] = ("holds", "differs", "inconclusive", "underpowered")
FEW = 20  # fewer values than this: Student's interval, since a bootstrap of so few is too narrow


@dataclass(frozen=True)
class Wanted:
    """The side on which a value is wanted. At least one bound is given; two make a range."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None

    def __post_init__(self) -> None:
        given = [bound for bound in (self.at_least, self.at_most, self.above, self.below) if bound is not None]
        if not given:
            raise ValueError("what is wanted must be said: at_least, at_most, above or below")
        if any(math.isnan(bound) for bound in given):
            raise ValueError("a bound is not a number")

    def __str__(self) -> str:
        words = {"at least": self.at_least, "at most": self.at_most, "above": self.above, "below": self.below}
        return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)

    def holds(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def judge(self, low: float, high: float) -> Verdict:
        """An interval wholly on the wanted side holds, wholly off it differs; one that straddles is inconclusive."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return "inconclusive"
        if self.holds(low) and self.holds(high):
            return "holds"
        off_below = self._lower() is not None and (high < self._lower() or (high == self.above))
        off_above = self._upper() is not None and (low > self._upper() or (low == self.below))
        return "differs" if off_below or off_above else "inconclusive"

    def _lower(self) -> float | None:
        return max((bound for bound in (self.at_least, self.above) if bound is not None), default=None)

    def _upper(self) -> float | None:
        return min((bound for bound in (self.at_most, self.below) if bound is not None), default=None)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A 95% interval of the mean of independent values, one a seed; None for a lone value or one that is not finite.

    Student's for few values, a percentile bootstrap for many.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    from assay.tasks.statistics import bootstrap_mean, mean_interval

    found = (bootstrap_mean if len(values) >= FEW else mean_interval)(list(values))
    return found.low, found.high
