"""From an expression to the object it names: parts inside parts are built first."""

import inspect
from typing import Any

from assay.core import registry
from assay.core.errors import AssayError, UnknownPart
from assay.core.expressions import Call, parse


def build(call: Call | str, seam: str | None = None, **given: Any) -> Any:
    """`get(name, seam)(*args, **options, **given)`, with every call among the arguments built first.

    A part given by position is of the same seam (`twinkv(snapkv)`); one given by name is of that seam or, failing that,
    of any. A bare word becomes text where the parameter is annotated as text. The budget is left to the caller. Raises
    AssayError for arguments that do not fit."""
    call = parse(call) if isinstance(call, str) else call
    made = registry.get(call.name, seam)
    parameters = accepted(made)
    texts = {name for name, parameter in parameters.items() if _takes_text(parameter)}
    by_position = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    args = [
        _value(value, seam, at < len(by_position) and by_position[at] in texts) for at, value in enumerate(call.args)
    ]
    options = {name: _value(value, _seam_of(value, seam), name in texts) for name, value in call.options} | given
    _check(call, args, options, parameters, by_position)
    return made(*args, **options)


def accepted(made: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a function or class by name; those behind `**options` of a class are its bases' own."""
    found: dict[str, inspect.Parameter] = {}
    sources = [base.__init__ for base in made.__mro__ if "__init__" in vars(base)] if inspect.isclass(made) else [made]
    for source in sources:
        parameters = list(inspect.signature(source).parameters.values())
        own = parameters[1:] if inspect.isclass(made) else parameters
        found |= {parameter.name: parameter for parameter in own if parameter.name not in found}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            break
    else:
        return found
    return {name: parameter for name, parameter in found.items() if parameter.kind is not parameter.VAR_KEYWORD}


def _takes_text(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    words = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") + str(annotation)
    return "str" in words or "Literal" in words


def _seam_of(value: Any, seam: str | None) -> str | None:
    if not isinstance(value, Call):
        return seam
    try:
        registry.find(value.name, seam)
    except UnknownPart:
        return None
    return seam


def _value(value: Any, seam: str | None, text: bool) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(inner, seam, text) for inner in value)
    if not isinstance(value, Call):
        return value
    if text and not value.args and not value.options:
        return value.name
    return build(value, seam)


def _check(
    call: Call, args: list, options: dict, parameters: dict[str, inspect.Parameter], by_position: list[str]
) -> None:
    takes = ", ".join(name for name, parameter in parameters.items() if "VAR" not in parameter.kind.name)
    mend = f"it takes {takes}" if takes else "it takes none"
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds and (unknown := options.keys() - parameters.keys()):
        raise AssayError(f"{call.name} has no option {', '.join(sorted(unknown))}; {mend}")
    if inspect.Parameter.VAR_POSITIONAL not in kinds and len(args) > len(by_position):
        raise AssayError(f"{call.name} was given {len(args)} arguments without a name; {mend}")
    if twice := options.keys() & set(by_position[: len(args)]):
        raise AssayError(f"{call.name} is given {', '.join(sorted(twice))} twice")
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and "VAR" not in parameter.kind.name
    ]
    if missing := [name for name in needed if name not in options and name not in by_position[: len(args)]]:
        raise AssayError(f"{call.name} needs {', '.join(missing)}; {mend}")
