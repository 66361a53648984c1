"""The one grammar for naming parts: on the command line, in Python and in reports.

    expression = call ["+" format] ["@" budget]    twinkv(adakv(snapkv))@0.25    snapkv+int4@512tok    ./mine.py:P(x=1)@4MiB
    format     = call                              a number format that what is kept is held in: kivi(bits=2)
    call       = name ["(" [item {"," item}] ")"]  nestedkv(blocks=64)
    item       = [word "="] value
    value      = number | string | True | False | None | "[" values "]" | call
    layers     = term {"+" term}                   3*gated_deltanet + softmax
    term       = [integer "*"] (call | "(" layers ")")

`str(call)` is canonical (options by name, numbers in their shortest form) and is read back as the same call.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from assay.core.errors import AssayError, ExpressionError

_NAME = re.compile(r"(?:[^\W\d]|\.{1,2}/|~/|/)[\w./~\-]*(?::[\w./~\-]+)?")
_WORD = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_STRING = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_BUDGET = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]-?\d+)?(tok|[kmg]i?b|b)?(?![\w.])", re.IGNORECASE)
_UNITS = {"tok": "tok", "b": "B", "kb": "KB", "mb": "MB", "gb": "GB", "kib": "KiB", "mib": "MiB", "gib": "GiB"}
_CONSTANTS = {"True": True, "False": False, "None": None}
_DEEPEST, _MOST_LAYERS, _MOST_DIGITS = 50, 4096, 100


@dataclass(frozen=True)
class Call:
    """A part's name with its arguments: numbers, strings, constants, tuples of these, or further calls.

    `options` are (name, value) pairs in the order of their names; `budget` is the text after `@`, or None; `format` the
    call after `+`, or None.
    """

    name: str
    args: tuple = ()
    options: tuple[tuple[str, Any], ...] = ()
    budget: str | None = None
    format: "Call | None" = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(sorted(self.options, key=lambda pair: pair[0])))

    def __str__(self) -> str:
        items = [_write(value) for value in self.args] + [f"{key}={_write(value)}" for key, value in self.options]
        inner = f"({', '.join(items)})" if items else ""
        held = f"+{self.format}" if self.format is not None else ""
        return f"{self.name}{inner}{held}" + (f"@{self.budget}" if self.budget is not None else "")

    def alone(self) -> "Call":
        """Without budget and number format: the part itself."""
        return Call(self.name, self.args, self.options)


def _write(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_write, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        return f"'{escaped}'"
    return str(value) if isinstance(value, Call) else repr(value)


def parse(text: str) -> Call:
    """Read one expression. Raises ExpressionError, which shows the text with a caret under the fault."""
    reader = _Reader(text)
    call = reader.call(0)
    held = reader.call(0) if reader.take("+") else None
    budget = reader.budget() if reader.take("@") else None
    reader.end()
    if held is not None or budget is not None:
        call = Call(call.name, call.args, call.options, budget, held)
    return call


def parse_layers(text: str) -> list[Call]:
    """Read a pattern of layers: `3*gated_deltanet + softmax` is four calls."""
    reader = _Reader(text)
    layers = reader.layers(0)
    reader.end()
    return layers


class _Reader:
    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise AssayError(f"an expression such as twinkv(snapkv) is a text, not {type(text).__name__} {text!r}")
        self.text = re.sub(r"[\r\n\t]", " ", text)  # the caret needs one line with one column a character
        self.at = 0

    def fail(self, why: str, at: int | None = None) -> ExpressionError:
        return ExpressionError(self.text, self.at if at is None else at, why)

    def space(self) -> None:
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1

    def take(self, symbol: str) -> bool:
        self.space()
        if not self.text.startswith(symbol, self.at):
            return False
        self.at += len(symbol)
        return True

    def match(self, pattern: re.Pattern) -> re.Match | None:
        self.space()
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def end(self) -> None:
        self.space()
        rest = self.text[self.at :]
        if rest.startswith("@"):
            raise self.fail("there is one budget, at the end of the whole expression")
        if rest.startswith("+"):
            raise self.fail("there is one number format, before the budget: snapkv+int4@0.25")
        if rest:
            raise self.fail(f"{rest[0]!r} is not expected here" if rest[0] != ")" else "this ) closes nothing")

    def call(self, depth: int) -> Call:
        if depth > _DEEPEST:
            raise self.fail(f"nested deeper than {_DEEPEST}")
        found = self.match(_NAME)
        if not found:
            raise self.fail("a part's name is expected here")
        args, options = self.items(depth) if self.take("(") else ((), ())
        return Call(found[0], args, options)

    def items(self, depth: int) -> tuple[tuple, tuple]:
        opened, args, options = self.at - 1, [], {}
        while not self.take(")"):
            if args or options:
                self.separator(opened, ")")
            self.space()
            if self.at == len(self.text):
                raise self.fail("this bracket is not closed by )", opened)
            start, key = self.at, self.key()
            value = self.value(depth)
            if key in options:
                raise self.fail(f"{key} is given twice", start)
            if key is None and options:
                raise self.fail("an argument without a name comes before those with one", start)
            if key is None:
                args.append(value)
            else:
                options[key] = value
        return tuple(args), tuple(options.items())

    def separator(self, opened: int, closing: str) -> None:
        if self.take(","):
            return
        self.space()
        if self.at == len(self.text):
            raise self.fail(f"this bracket is not closed by {closing}", opened)
        if self.text[self.at] == "@":
            raise self.fail("a budget belongs to the whole expression, after its last bracket")
        if self.text[self.at] == "+":
            raise self.fail("a number format belongs to the whole expression, after its last bracket")
        raise self.fail(f", or {closing} is expected here")

    def key(self) -> str | None:
        start = self.at
        found = self.match(_WORD)
        if found and self.take("="):
            return found[0]
        self.at = start
        return None

    def value(self, depth: int) -> Any:
        if found := self.match(_STRING):
            return re.sub(r"\\(.)", lambda escape: {"n": "\n"}.get(escape[1], escape[1]), found[1] or found[2] or "")
        if found := self.match(_NUMBER):
            return self.number(found)
        self.space()
        if self.take("["):
            return self.values(depth)
        if self.text[self.at : self.at + 1] in ("'", '"'):
            raise self.fail("this quote is not closed")
        if self.at == len(self.text) or self.text[self.at] in ",)]=@":
            raise self.fail("a value is expected here: a number, a 'text', or a part")
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _CONSTANTS and not _NAME.fullmatch(self.text[self.at : word.end() + 1]):
            self.at = word.end()
            return _CONSTANTS[word[0]]
        return self.call(depth + 1)

    def number(self, found: re.Match) -> int | float:
        text = found[0]
        if len(text) > _MOST_DIGITS:
            raise self.fail(f"a number of more than {_MOST_DIGITS} digits is not meant", found.start())
        number = int(text) if text.lstrip("+-").isdigit() else float(text)
        if number in (float("inf"), float("-inf")):
            raise self.fail("this number is too large", found.start())
        if self.text[self.at : self.at + 1].isalnum():
            raise self.fail("a number ends here; a part's name begins with a letter")
        return number

    def values(self, depth: int) -> tuple:
        if depth > _DEEPEST:
            raise self.fail(f"nested deeper than {_DEEPEST}")
        opened, values = self.at - 1, []
        while not self.take("]"):
            if values:
                self.separator(opened, "]")
            values.append(self.value(depth + 1))
        return tuple(values)

    def budget(self) -> str:
        found = self.match(_BUDGET)
        if not found:
            raise self.fail(
                "a budget is expected here: a ratio such as 0.25, tokens such as 512tok, or bytes such as 4MiB"
            )
        unit = (found[2] or "").lower()
        amount = Decimal(found[0][: len(found[0]) - len(unit)])
        if amount and abs(amount.adjusted()) > _MOST_DIGITS:
            raise self.fail(f"a budget of more than {_MOST_DIGITS} digits is not meant", found.start())
        return f"{amount.normalize():f}" + _UNITS.get(unit, "")

    def layers(self, depth: int) -> list[Call]:
        if depth > _DEEPEST:
            raise self.fail(f"nested deeper than {_DEEPEST}")
        layers = self.term(depth)
        while self.take("+"):
            layers += self.term(depth)
        return layers

    def term(self, depth: int) -> list[Call]:
        start, times = self.at, 1
        if found := self.match(re.compile(r"\d+")):
            times = int(found[0])
            if not self.take("*"):
                raise self.fail("* is expected between a number and a part")
        opened = self.at
        if self.take("("):
            inner = self.layers(depth + 1)
            if not self.take(")"):
                raise self.fail("this bracket is not closed by )", opened)
        else:
            inner = [self.call(depth)]
        if not 1 <= times * len(inner) <= _MOST_LAYERS:
            raise self.fail(f"a pattern has from 1 to {_MOST_LAYERS} layers", start)
        return inner * times


def build(call: Call | str, seam: str | None = None, **given: Any) -> Any:
    """Build the part that an expression names; see `assay.core.build`."""
    from assay.core.build import build as build_call  # the grammar alone needs no registry

    return build_call(call, seam, **given)
