"""What was asked for, by canonical name: policies with the budgets each is measured at, tasks, and the code behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from assay.bench.compare.settings import Settings, split
from assay.core import registry
from assay.core.budget import Budget
from assay.core.build import build
from assay.core.errors import AssayError, UnknownPart
from assay.core.expressions import Call, parse
from assay.core.policy import Policy
from assay.tasks import resolve


def check_names(parts: Sequence[str], settings: Settings) -> None:
    """Raise AssayError for a name, expression or budget that cannot be meant, before a model is loaded for it."""
    for name in policies_asked(parts, settings.budgets):
        built(name)
    for name in settings.tasks:
        resolve(canonical_task(name))


def policies_asked(parts: Sequence[str], budgets: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Canonical policies with the budgets each is measured at: its own where the expression has one, else all of them."""
    found: dict[str, list[str]] = {"random": []}
    everywhere = [str(Budget.parse(b)) for b in budgets]
    for text in split(list(parts)):
        call = parse(text)
        name = str(canonical(Call(call.name, call.args, call.options)))
        if name == "full":
            if call.budget and not Budget.parse(call.budget).everything:
                raise AssayError(
                    f"{text}: full keeps everything; name it without a budget, or a policy that drops some"
                )
            continue
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
    return Call(name, inner(call.args), tuple((k, inner(v)) for k, v in call.options), call.budget)


def canonical_task(text: str) -> str:
    name, colon, _ = text.partition(":")
    if colon and name in ("text", "jsonl"):
        return text
    call = parse(text)
    return str(Call(registry.find(call.name, "task").name, call.args, call.options))


def code_of(policy: str) -> str:
    """A checksum of the files that the policy's parts are written in: an edited policy is another policy."""

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

    digest = hashlib.sha256()
    for path in sorted(files(parse(policy))):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def built(name: str) -> Policy:
    """The policy that a canonical expression names."""
    policy = build(name, "policy")
    if not isinstance(policy, Policy):
        raise AssayError(f"{name} is no cache policy: its class must derive from assay.core.policy.Policy")
    return policy
