"""Expressions become objects: nested parts first, words as text where text is wanted, wrong arguments named."""

from dataclasses import dataclass
from typing import Any

import pytest

from assay.core import registry
from assay.core.errors import AssayError, UnknownPart
from assay.core.expressions import build


class Pins:
    def __init__(self, *, sink: int = 4) -> None:
        self.sink = sink


class Plain(Pins):
    def __init__(self, window: int = 8, kind: str = "mean", **pins: Any) -> None:
        super().__init__(**pins)
        self.window, self.kind = window, kind


class Wrapper(Pins):
    def __init__(self, inner: Pins, *, cap: float = 0.1, store: Any = None, **pins: Any) -> None:
        super().__init__(**pins)
        self.inner, self.cap, self.store = inner, cap, store


@dataclass
class Bits:
    bits: int


PARTS = {("plain", "policy"): Plain, ("wrap", "policy"): Wrapper, ("bits", "format"): Bits}


@pytest.fixture(autouse=True)
def house(monkeypatch):
    def find(name, seam=None):
        for (known, of), made in PARTS.items():
            if known == name and seam in (None, of):
                return made
        raise UnknownPart(seam or "part", name, [])

    monkeypatch.setattr(registry, "find", find)
    monkeypatch.setattr(registry, "get", find)


def test_parts_inside_parts_are_built_first():
    made = build("wrap(wrap(plain(window=3, sink=0)), cap=0.5, store=bits(4))@0.25", "policy")
    assert isinstance(made.inner.inner, Plain)
    assert (made.inner.inner.window, made.inner.inner.sink, made.cap, made.sink) == (3, 0, 0.5, 4)
    assert made.store == Bits(4)


def test_a_bare_word_is_text_where_text_is_wanted():
    assert build("plain(kind=median)", "policy").kind == "median"
    assert build("plain(3, median)", "policy").kind == "median"
    with pytest.raises(UnknownPart):
        build("wrap(median)", "policy")


def test_given_arguments_join_those_of_the_expression():
    assert build("plain", "policy", window=5).window == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("plain(widnow=3)", "plain has no option widnow; it takes window, kind, sink"),
        ("wrap", "wrap needs inner; it takes inner, cap, store, sink"),
        ("plain(1, a, 3)", "given 3 arguments without a name"),
        ("plain(1, window=2)", "window twice"),
        ("wrap(bits(4))", "unknown policy 'bits'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(text, why):
    with pytest.raises(AssayError, match=why):
        build(text, "policy")
