"""Whether arguments are what a part's parameters ask for, said in one line before the part meets them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from assay.core.errors import AssayError


def whole(part: str, least: int = 1, **values: Any) -> None:
    """Raise AssayError unless every value is a whole number from `least` on; None is what was left out."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise AssayError(f"{part}: {name}={value!r}; give a whole number from {least} on")


def check_kinds(part: str, made: Any, values: Mapping[str, Any]) -> None:
    """Raise AssayError for a value that its parameter's annotation rules out (a text for a number, say).

    Annotations that say nothing about plain values are taken as fulfilled.
    """
    hints = _hints(made)
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            raise AssayError(f"{part}: {name}={_shown(value)} does not fit; it takes {_said(hints[name])}")


def _hints(made: Any) -> dict[str, Any]:
    """Annotations by parameter; those behind `**options` of a class are its bases' own."""
    sources = [base.__init__ for base in made.__mro__ if "__init__" in vars(base)] if inspect.isclass(made) else [made]
    found: dict[str, Any] = {}
    for source in sources:
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        try:
            hints = get_type_hints(source)
            plain = [p.name for p in inspect.signature(source).parameters.values() if p.kind not in variable]
        except (NameError, TypeError, ValueError):  # an annotation for type checkers alone says nothing here
            continue
        found |= {name: hints[name] for name in plain if name in hints and name not in found}
    return found


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:  # which of them is the part's own matter
        return isinstance(value, tuple({type(one) for one in inner}))
    if origin in (tuple, list):
        kinds = [one for one in inner if one is not Ellipsis]
        return isinstance(value, (tuple, list)) and all(any(_fits(v, k) for k in kinds or [Any]) for v in value)
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    kind = origin or hint
    try:
        return isinstance(value, kind) if isinstance(kind, type) else True
    except TypeError:
        return True


def _said(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_said(one) for one in inner)
    if origin is Literal:
        return " or ".join(map(str, inner))
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", type(None): "None"}
    if origin in (tuple, list):
        return f"a list such as [{', '.join(_said(one) for one in inner if one is not Ellipsis)}]"
    return words.get(hint) or words.get(origin) or f"a {getattr(origin or hint, '__name__', str(hint))}"


def _shown(value: Any) -> str:
    plain = isinstance(value, (int, float, str, tuple, list, dict, type(None)))
    return repr(value)[:60] if plain else f"a {type(value).__name__}"
