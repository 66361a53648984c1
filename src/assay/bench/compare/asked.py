"""What was asked for, by canonical name: policies with the budgets each is measured at, tasks, and the code behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.bench.compare.settings import Settings, split
from assay.core import registry
from assay.core.budget import Budget
from assay.core.build import build
from assay.core.errors import AssayError, UnknownPart
from assay.core.expressions import Call, parse
from assay.core.format import Format
from assay.core.policy import Policy
from assay.tasks import resolve


@dataclass(frozen=True)
class Arm:
    """One way to hold a cache: which policy drops tokens (None: all stay), and in which number format the rest is held."""

    policy: Policy | None
    format: Format | None = None
    held_in: str = ""  # the format's canonical expression


def check_names(parts: Sequence[str], settings: Settings) -> None:
    """Raise AssayError for a name, expression or budget that cannot be meant, before a model is loaded for it."""
    for name in policies_asked(parts, settings.budgets, settings.match):
        built(name)
    for name in settings.tasks:
        resolve(canonical_task(name))


def policies_asked(parts: Sequence[str], budgets: Sequence[str], match: str = "tokens") -> dict[str, tuple[str, ...]]:
    """Canonical policies with the budgets each is measured at: its own where the expression has one, else all of them.

    `full` in a number format drops nothing: it has one cell, or with budgets matched in bytes one at each.
    """
    found: dict[str, list[str]] = {"random": []}
    everywhere = [str(Budget.parse(b)) for b in budgets]
    for text in split(list(parts)):
        call = parse(text)
        name = str(canonical(Call(call.name, call.args, call.options, format=call.format)))
        if name.partition("+")[0] == "full" and match != "bytes" or name == "full":
            if call.budget and not Budget.parse(call.budget).everything:
                raise AssayError(
                    f"{text}: full keeps everything; name it without a budget, or a policy that drops some"
                )
            if name != "full":
                found[name] = ["1"]
        else:
            found.setdefault(name, []).extend([str(Budget.parse(call.budget))] if call.budget else everywhere)
    if found.keys() == {"random"} and not found["random"]:
        found["random"] = everywhere
    return {name: tuple(dict.fromkeys(its)) for name, its in found.items()}


def canonical(call: Call) -> Call:
    """The call with the names of the registry in place of aliases. Raises UnknownPart with the nearest names."""

    def inner(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(inner, value))
        if not isinstance(value, Call):
            return value
        try:
            return canonical(value)
        except UnknownPart:
            return value  # a bare word may be a text; `build` says so where it is not

    name = registry.find(call.name, "policy").name
    held_in = call.format and Call(
        registry.find(call.format.name, "format").name, call.format.args, call.format.options
    )
    return Call(name, inner(call.args), tuple((k, inner(v)) for k, v in call.options), call.budget, held_in)


def canonical_task(text: str) -> str:
    name, colon, _ = text.partition(":")
    if colon and name in ("text", "jsonl"):
        return text
    call = parse(text)
    return str(Call(registry.find(call.name, "task").name, call.args, call.options))


def code_of(policy: str) -> str:
    """A checksum of the files that the policy's parts and format are written in: an edited policy is another policy."""

    def files(value: Any) -> set[str]:
        if isinstance(value, tuple):
            return {f for one in value for f in files(one)}
        if not isinstance(value, Call):
            return set()
        inside = files(value.args) | files(tuple(v for _, v in value.options))
        try:
            return inside | {str(registry.find(value.name, "policy").path)}
        except UnknownPart:
            return inside

    digest, call = hashlib.sha256(), parse(policy)
    held_in = {str(registry.find(call.format.name, "format").path)} if call.format else set()
    for path in sorted(files(call.alone()) | held_in):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def built(name: str) -> Arm:
    """The policy and the number format that a canonical expression names."""
    call = parse(name)
    held_in = build(call.format, "format") if call.format is not None else None
    named = str(call.format or "")
    if str(call.alone()) == "full":
        return Arm(None, held_in, named)
    policy = build(call.alone(), "policy")
    if not isinstance(policy, Policy):
        raise AssayError(f"{name} is no cache policy: its class must derive from assay.core.policy.Policy")
    return Arm(policy, held_in, named)
