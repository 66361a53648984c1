"""What an experiment finds: exact statements, expectations, positive controls and reports."""

import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar, final

from assay.claims.verdicts import Wanted, interval

Item = TypeVar("Item")


@final
class Evidence:
    """Handed to an experiment, which states what it finds. `seeds` are those that all arms of a comparison share."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = tuple(seeds)
        self._exact: list[dict] = []
        self._expect: list[dict] = []
        self._control: list[dict] = []
        self._report: list[dict] = []

    def exact(
        self,
        says: str,
        value: Any,
        *,
        below: float | None = None,
        at_most: float | None = None,
        at_least: float | None = None,
        equals: Any = None,
    ) -> bool:
        """State what must hold, of every one of several values; a failure is a bug and makes the run fail.

        One bound is given. Returns whether it holds.
        """
        self._new(says)
        value, equals = plain(value), plain(equals)
        bounds = {"below": below, "at most": at_most, "at least": at_least, "equals": equals}
        given = [(word, bound) for word, bound in bounds.items() if bound is not None]
        if len(given) != 1:
            raise ValueError(f"{says!r}: one of below, at_most, at_least and equals is needed")
        if equals is not None:
            # True == 1 in Python, but a check that returns True where a count of 1 is due has gone wrong
            holds = type(value) is type(equals) and value == equals or _both_numbers(value, equals) and value == equals
        else:
            wanted = Wanted(below=below, at_most=at_most, at_least=at_least)
            values = value if isinstance(value, list) else [value]
            holds = bool(values) and all(wanted.holds(float(one)) for one in values)
        word, bound = given[0]
        entry = {"says": says, "value": value, "bound": f"{word} {bound}", "holds": bool(holds)}
        self._exact.append(entry)
        return entry["holds"]

    def expect(
        self,
        says: str,
        value: float | Sequence[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        above: float | None = None,
        below: float | None = None,
        interval: tuple[float, float] | None = None,
        paper: str | float | None = None,
        powered: bool | None = None,
    ) -> None:
        """State what is expected; it may fail, and then the record says so.

        `value` is a number or one paired value a seed, whose interval then decides; a lone number without `interval` is
        compared as it is. `paper` is the paper's own value in words. Without a positive control that passed the verdict
        is "underpowered"; where there are several, `powered` is what `control` returned for the one that matters here.
        """
        self._new(says)
        wanted = Wanted(at_least, at_most, above, below)
        self._expect.append(_judged(says, value, wanted, interval) | {"paper": plain(paper), "powered": powered})

    def control(
        self,
        says: str,
        value: float | Sequence[float],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        above: float | None = None,
        below: float | None = None,
        interval: tuple[float, float] | None = None,
    ) -> bool:
        """A positive control: the same protocol sees a difference that is known to be there. Returns whether it
        does."""
        self._new(says)
        entry = _judged(says, value, Wanted(at_least, at_most, above, below), interval)
        self._control.append(entry)
        return entry["verdict"] == "holds"

    def report(self, says: str, value: Any) -> None:
        """Show a number, table or series; it is not judged."""
        self._new(says)
        self._report.append({"says": says, "value": plain(value)})

    def seed(self, seed: int) -> int:
        """Seed Python, numpy and torch at once; returns the seed."""
        import numpy
        import torch

        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        return seed

    def model(self, name: str, **options: Any) -> Any:
        """A pretrained model or a small one that is trained here on first use and cached, by name."""
        import assay

        return assay.load(name, **options)

    def progress(self, items: Iterable[Item], says: str) -> Iterator[Item]:
        """Pass items through while a bar on a terminal shows how far the run is."""
        from rich.console import Console
        from rich.progress import track

        return iter(track(items, says, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()))

    def findings(self) -> dict[str, Any]:
        """The judged part of the record: exact, expect, control, report, seeds."""
        passed = bool(self._control) and all(entry["verdict"] == "holds" for entry in self._control)
        expected = []
        for entry in self._expect:
            entry = dict(entry)
            powered = entry.pop("powered")
            if not (passed if powered is None else powered and bool(self._control)):
                entry["verdict"] = "underpowered"
            expected.append(entry)
        return {
            "exact": list(self._exact),
            "expect": expected,
            "control": list(self._control),
            "report": list(self._report),
            "seeds": list(self.seeds),
        }

    def _new(self, says: str) -> None:
        known = (entry["says"] for entry in (*self._exact, *self._expect, *self._control, *self._report))
        if not says.strip() or says in known:
            raise ValueError(f"each statement is said once, in words of its own: {says!r}")


def _both_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _judged(says: str, value: Any, wanted: Wanted, given: tuple[float, float] | None) -> dict[str, Any]:
    value = plain(value)
    values = [float(one) for one in value] if isinstance(value, list) else [float(value)]
    if not values:
        raise ValueError(f"{says!r}: there is no value")
    mean = statistics.fmean(values)
    found = tuple(map(float, given)) if given is not None else interval(values)
    if found is not None and not found[0] <= found[1]:
        raise ValueError(f"{says!r}: the interval {found} is upside down")
    alone = len(values) == 1 and found is None
    verdict = wanted.judge(*found) if found else wanted.judge(mean, mean) if alone else "inconclusive"
    entry = {"says": says, "value": mean, "interval": list(found) if found else None, "wanted": str(wanted)}
    if len(values) > 1:
        entry |= {"values": values, "spread": statistics.stdev(values) if all(map(math.isfinite, values)) else None}
    return entry | {"verdict": verdict}


def plain(value: Any) -> Any:
    """A value as JSON can hold it: tensors and arrays as lists, dataclasses as objects, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "tolist"):
        return plain(value.detach().cpu().tolist() if hasattr(value, "detach") else value.tolist())
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(inner) for inner in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
