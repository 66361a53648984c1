"""From an expression to the object it names: parts inside parts are built first."""

import inspect
from typing import Any

from assay.core import registry
from assay.core.arguments import check_kinds
from assay.core.config import Spec
from assay.core.errors import AssayError, UnknownPart
from assay.core.expressions import Call, parse


def build(call: Call | str, seam: str | None = None, **given: Any) -> Any:
    """`get(name, seam)(*args, **options, **given)`, with every call among the arguments built first.

    A part given by position is of the same seam (`twinkv(snapkv)`); one given by name is of that seam or, failing that,
    of any. A bare word becomes text where the parameter is annotated as text. The budget is left to the caller. Raises
    AssayError for arguments that do not fit."""
    call = call if isinstance(call, Call) else parse(call)
    if call.format is not None:
        raise AssayError(
            f"{call}: a number format is chosen where a state begins, with cache= or kv_format=; leave out +{call.format}"
        )
    made = registry.get(call.name, seam)
    parameters = accepted(made)
    texts = {name for name, parameter in parameters.items() if _takes_text(parameter)}
    by_position = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    args = [
        _value(value, seam, at < len(by_position) and by_position[at] in texts) for at, value in enumerate(call.args)
    ]
    options = {name: _value(value, _seam_of(value, seam), name in texts) for name, value in call.options} | given
    _check(call, args, options, parameters, by_position)
    check_kinds(call.name, made, dict(zip(by_position, args, strict=False)) | options)
    return made(*args, **options)


def build_spec(spec: Spec | dict[str, Any], seam: str, *first: Any) -> Any:
    """The part of a config, given `first` and its options. Raises AssayError for options that it does not have, misses or cannot take."""
    if isinstance(spec, dict):
        if unknown := spec.keys() - {"part", "options"}:
            raise AssayError(
                f"{seam}: a part is written with part and options, not {', '.join(map(str, sorted(unknown)))}"
            )
        spec = Spec(spec.get("part", ""), spec.get("options", {}))
    if not isinstance(spec, Spec) or not isinstance(spec.part, str) or not isinstance(spec.options, dict):
        raise AssayError(
            f"{seam}: {spec!r} names no part; write its name and its options, as in Spec('rope', {{'theta': 1e4}})"
        )
    made = registry.get(spec.part, seam)
    parameters = accepted(made)
    by_position = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    _check(Call(spec.part), list(first), spec.options, parameters, by_position)
    check_kinds(spec.part, made, spec.options)
    return made(*first, **spec.options)


def unbudgeted(text: str, seam: str) -> Any:
    """The part of an expression of a seam that knows no budgets. Raises AssayError where there is one."""
    call = parse(text)
    if call.budget is not None:
        raise AssayError(f"{seam} {text!r}: a budget belongs to a cache policy; leave out @{call.budget}")
    return build(call, seam)


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
