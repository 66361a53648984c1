"""What a comparison is asked to do, with defaults that end in a few minutes on two cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from assay.core.errors import AssayError

POLICIES = ("snapkv", "twinkv(snapkv)", "nestedkv", "keydiff")
BASELINES = ("full", "random")


@dataclass(frozen=True)
class Settings:
    """`tasks` and `length` (tokens of a context, one or several): by default what fits the model. `examples`: a task and length.

    `aware`: compress with the question in sight. `chunk`: tokens that are read at once, a policy dropping some in between
    (0: the whole context). `match`: `bytes` takes budgets as shares of the full cache's bytes, whatever the number format;
    by default they are shares of its tokens.

    `generate`: score what greedy decoding writes instead of a forced answer. `speed_examples`: on how many examples of a
    task decoding is timed, `speed_steps` tokens each. `picture_examples`: for how many the kept positions are recorded.
    `floor`: full's share of right answers up to which a task says nothing. `max_loss` (relative to full, on every task)
    and `max_bytes` (share of full's bytes) bound what is recommended.
    """

    tasks: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ("0.5", "0.25")
    length: tuple[int, ...] = ()
    examples: int = 10
    seed: int = 0
    aware: bool = False
    chunk: int = 0
    match: str = "tokens"
    generate: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    speed_examples: int = 1
    speed_steps: int = 8
    picture_examples: int = 1
    floor: float = 0.1
    max_loss: float = 0.01
    max_bytes: float = 1.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from keywords; texts with commas are lists. Raises AssayError for unknown names and values out of range."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(options.keys() - known):
            raise AssayError(f"compare has no setting {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        given = {k: v for k, v in options.items() if v is not None}
        for name in ("tasks", "budgets"):
            if name in given:
                given[name] = tuple(dict.fromkeys(split(given[name])))
        if "length" in given:
            given["length"] = lengths(given["length"])
        for name in ("floor", "max_loss", "max_bytes"):
            if isinstance(given.get(name), str):
                given[name] = share(name, given[name])
        for name in ("tasks", "budgets", "length"):
            if name in given and not given[name]:
                raise AssayError(f"{name} is empty: name at least one")
        settings = replace(cls(), **given)
        settings._check()
        return settings

    def _check(self) -> None:
        least_of = {"examples": 1, "seed": 0, "speed_examples": 0, "speed_steps": 1, "picture_examples": 0, "chunk": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise AssayError(f"{name}={value!r}: a whole number of at least {least} is needed")
        if self.match not in ("tokens", "bytes"):
            raise AssayError(f"match={self.match!r}: budgets are matched in tokens or in bytes")
        for name, high in (("floor", 1), ("max_loss", float("inf")), ("max_bytes", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
                raise AssayError(f"{name}={value!r}: a number from 0 to {high} is needed")


def lengths(given: int | str | Sequence[int | str]) -> tuple[int, ...]:
    """Tokens of a context: `1024`, `512,1024` or a list; ascending, each once. Raises AssayError for what is no such list."""
    found = set()
    for text in split([str(one) for one in given] if isinstance(given, (list, tuple)) else str(given)):
        if not text.isdecimal() or int(text) < 1:
            raise AssayError(f"length {text!r}: whole numbers of tokens are needed, such as 1024 or 512,1024,2048")
        found.add(int(text))
    return tuple(sorted(found))


def share(name: str, text: str) -> float:
    """`1%` or `0.01`."""
    number = text.strip().removesuffix("%")
    try:
        return float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise AssayError(f"{name}={text!r}: write a share such as 1% or 0.01") from None


def split(text: str | float | Sequence[Any]) -> list[str]:
    """A list from `a, b(c, d)` (commas inside brackets and quotes divide nothing), or from a list of such texts."""
    if not isinstance(text, (str, int, float)):
        return [item for one in text for item in split(one)]
    items, depth, quote = [""], 0, ""
    for letter in str(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "([") - (letter in ")]") if not quote else 0
        if letter == "," and depth <= 0 and not quote:
            items.append("")
        else:
            items[-1] += letter
    return [item.strip() for item in items if item.strip()]
