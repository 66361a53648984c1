"""Named places in a running model: listen to them (`record`) or change what passes (`edit`).

A module that has sites calls `site(self, "name", x)` where the value passes. Nothing listens: that is one attribute look-up.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

Listener = Callable[[str, Tensor], Tensor]


class Tap:
    """What one module's sites call: for each local name the listeners, in order of registration."""

    def __init__(self, prefix: str, listeners: dict[str, list[Listener]]) -> None:
        self.prefix, self.listeners = prefix, listeners

    def wants(self, name: str) -> bool:
        return name in self.listeners

    def __call__(self, name: str, x: Tensor) -> Tensor:
        for listener in self.listeners.get(name, ()):
            x = listener(self.prefix + name, x)
        return x


def site(module: Any, name: str, x: Tensor) -> Tensor:
    """Let `x` pass the site `name` of `module`; returns what goes on from there."""
    return x if module.tap is None else module.tap(name, x)


def wanted(module: Any, *names: str) -> bool:
    """Whether somebody listens to one of these sites (some values exist only on a slower path)."""
    return module.tap is not None and any(module.tap.wants(n) for n in names)


# TransformerLens' names, by what follows `blocks.N.` or by the whole name.
ALIASES = {
    "hook_resid_pre": "resid_pre",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "hook_attn_out": "attn.out",
    "hook_mlp_out": "mlp.out",
    "attn.hook_q": "attn.q_unrotated",
    "attn.hook_k": "attn.k_unrotated",
    "attn.hook_rot_q": "attn.q",
    "attn.hook_rot_k": "attn.k",
    "attn.hook_v": "attn.v",
    "attn.hook_attn_scores": "attn.scores",
    "attn.hook_pattern": "attn.pattern",
    "attn.hook_z": "attn.z",
    "mlp.hook_pre": "mlp.pre",
    "mlp.hook_post": "mlp.post",
    "ln1.hook_scale": "norm1.scale",
    "ln2.hook_scale": "norm2.scale",
    "hook_embed": "embed",
    "ln_final.hook_scale": "final_norm.scale",
}


def canonical(name: str) -> str:
    """Our name for a site that may be written as TransformerLens does."""
    words = name.split(".")
    for at in range(len(words)):
        if ours := ALIASES.get(".".join(words[at:])):
            return ".".join([*words[:at], ours])
    return name


def matching(model: Transformer, pattern: str) -> list[str]:
    """The model's sites that a name or a pattern (`blocks.*.resid_post`) means. Raises AssayError with the nearest three."""
    sites = model.site_names()
    found = [s for s in sites if fnmatch.fnmatchcase(s, canonical(pattern))]
    if not found:
        near = difflib.get_close_matches(canonical(pattern), sites, 3, cutoff=0.0)
        raise AssayError(f"no site {pattern!r} in this model; nearest: {', '.join(near)}")
    return found


class Tape:
    """What passed the recorded sites. `tape[site]` is the latest value, `tape.all(site)` every one, in order.

    It iterates over the sites that fired, in the order of the forward pass.
    """

    def __init__(self, sites: set[str]) -> None:
        self.sites = sites
        self.values: dict[str, list[Tensor]] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.all(name)[-1]

    def all(self, name: str) -> list[Tensor]:
        name = canonical(name)
        if name not in self.values:
            near = difflib.get_close_matches(name, list(self), 3, cutoff=0.0)
            why = "was recorded but never fired" if name in self.sites else "was not recorded"
            raise AssayError(f"site {name!r} {why}; nearest that fired: {', '.join(near) or 'none'}")
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)


@contextmanager
def record(model: Transformer, *patterns: str, detach: bool = True) -> Iterator[Tape]:
    """Record every site that a pattern names. On leaving, a pattern none of whose sites fired is an AssayError."""
    by_pattern = {p: matching(model, p) for p in patterns}
    tape = Tape({s for found in by_pattern.values() for s in found})

    def listen(name: str, x: Tensor) -> Tensor:
        tape.values.setdefault(name, []).append(x.detach() if detach else x)
        return x

    with _listening(model, dict.fromkeys(tape.sites, listen)):
        yield tape
    fired = list(tape)
    for pattern, found in by_pattern.items():
        if not set(found) & set(fired):
            near = difflib.get_close_matches(canonical(pattern), fired, 3, cutoff=0.0)
            raise AssayError(f"site {pattern!r} never fired in this run; nearest that did: {', '.join(near) or 'none'}")


@contextmanager
def edit(model: Transformer, edits: dict[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """While open, replace what passes each site by `fn(x)`, of the same shape. Unused edits are an AssayError on leaving.

    What several `record` and `edit` hear of one site, they hear in the order in which they were opened.
    """
    functions: dict[str, Callable[[Tensor], Tensor]] = {}
    for pattern, fn in edits.items():
        functions.update(dict.fromkeys(matching(model, pattern), fn))
    fired: set[str] = set()

    def change(name: str, x: Tensor) -> Tensor:
        fired.add(name)
        y = functions[name](x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise AssayError(f"the edit of {name} returned {got}; the site has shape {tuple(x.shape)}")
        return y

    with _listening(model, dict.fromkeys(functions, change)):
        yield
    for pattern in edits:
        if not set(matching(model, pattern)) & fired:
            raise AssayError(
                f"the edit of {pattern!r} never fired: no forward pass reached that site while it was open"
            )


@contextmanager
def _listening(model: Transformer, listeners: dict[str, Listener]) -> Iterator[None]:
    model.listeners.append(listeners)
    _connect(model)
    try:
        yield
    finally:
        model.listeners[:] = [entry for entry in model.listeners if entry is not listeners]
        _connect(model)


def _connect(model: Transformer) -> None:
    """Give each module a tap if somebody listens to one of its sites, else none."""
    loops = max(step.loop for step in model.steps) + 1
    for prefix, module in model.sited().items():
        by_name: dict[str, list[Listener]] = {}
        for name in module.sites:
            full = prefix + name
            for entry in model.listeners:
                heard = [entry[full]] if full in entry else []
                heard += [
                    partial(_in_loop, model, n, entry[f"loops.{n}.{full}"])
                    for n in range(loops)
                    if f"loops.{n}.{full}" in entry
                ]
                if heard:
                    by_name.setdefault(name, []).extend(heard)
        module.tap = Tap(prefix, by_name) if by_name else None


def _in_loop(model: Transformer, loop: int, listener: Listener, name: str, x: Tensor) -> Tensor:
    """Pass to a listener what it wants of one run of a looped block alone."""
    return listener(f"loops.{loop}.{name}", x) if model.loop == loop else x
