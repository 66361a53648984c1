"""What can go wrong in a way that the user can mend: one line that names the bad input and the mend."""


class AssayError(Exception):
    """The user's input cannot be used. The text is one line: what was given, why it cannot be used, what would work."""


class Refused(AssayError):
    """A thing was asked for an operation that it cannot do (a recurrent state asked to roll back, for one)."""


class UnknownPart(AssayError):
    """No part has this name. `nearest` holds the names that resemble it most."""

    def __init__(self, kind: str, name: str, nearest: list[str]) -> None:
        self.name, self.nearest = name, nearest
        mend = f"nearest: {', '.join(nearest)}" if nearest else "there are none of this kind"
        super().__init__(f"unknown {kind} {name!r}; {mend}")


class ExpressionError(AssayError):
    """An expression cannot be read. The text shows the expression with a caret under the fault.

    `text` is the whole expression, `at` the offset of the fault in characters, `why` one phrase.
    """

    def __init__(self, text: str, at: int, why: str) -> None:
        self.text, self.at, self.why = text, at, why
        super().__init__(f"{why}\n  {text}\n  {' ' * at}^")
