"""Small configurations of every registered part of a seam, found by probing its constructor: no list of parts to keep."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from tests.contracts.under_test import parts
from torch import nn

from assay.core import registry
from assay.core.build import accepted

# What a constructor may demand, by the vocabulary's names. A part that demands anything else must give it a default.
SIZES: dict[str, Any] = {"width": 24, "heads": 4, "head_dim": 8, "hidden": 40}


def options() -> dict[str, list[Any]]:
    """Options that change what code runs, tried wherever a constructor has them (the first of each also all together)."""
    return {
        "kv_heads": [2, 1],
        "window": [9],
        "softcap": [3.0],
        "qk_norm": [{"kind": "rms"}],
        "qk_norm_whole": [True],
        "bias": [True],
        "position": [
            {"part": card.name} for card in sorted(registry.cards("position"), key=lambda c: c.name != "rope")
        ],
        "activation": ["gelu_new"],
        "interleaved": [True],
        "fraction": [0.5],
        "scaling": [
            {"kind": "linear", "factor": 3.0},
            {"kind": "dynamic", "factor": 2.0, "original": 4096},
            {"kind": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 64},
            {"kind": "yarn", "factor": 4.0, "original": 64},
            {
                "kind": "longrope",
                "short": [1.0, 1.1, 1.3, 2.0],
                "long": [1.0, 2.0, 4.0, 9.0],
                "original": 4096,
                "attention_factor": 1.1,
            },
        ],
    }


def builds(seam: str) -> list[Any]:
    """`(name, options)` for each part: plain, each option alone, all together, and all but one."""
    found = []
    for card in parts(seam):
        parameters = accepted(registry.load(card))
        tried = {name: values for name, values in options().items() if name in parameters}
        sets = [{}] + [{name: value} for name, values in tried.items() for value in values]
        together = {name: values[0] for name, values in tried.items()}
        sets += [together] + [{n: v for n, v in together.items() if n != left} for left in together]
        distinct = {_label(chosen): chosen for chosen in sets}
        found += [pytest.param(card.name, chosen, id=f"{card.name}-{label}") for label, chosen in distinct.items()]
    return found


def _label(chosen: dict[str, Any]) -> str:
    def word(value: Any) -> str:
        return str(value.get("kind") or value.get("part")) if isinstance(value, dict) else str(value)

    return ",".join(f"{name}={word(value)}" for name, value in sorted(chosen.items())) or "plain"


def make(seam: str, name: str, chosen: dict[str, Any], dtype: torch.dtype = torch.float64) -> nn.Module:
    """The part, all its parameters drawn at random (so that biases and norms take part), reproducibly."""
    made = registry.get(name, seam)
    needed = [p for p in accepted(made).values() if p.default is inspect.Parameter.empty and "VAR" not in p.kind.name]
    unknown = [p.name for p in needed if p.name not in SIZES and p.name not in chosen]
    assert not unknown, f"{name} demands {unknown}: give them defaults, or use the names {sorted(SIZES)}"
    module = made(**{p.name: SIZES[p.name] for p in needed if p.name not in chosen}, **chosen).to(dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * (0.3 if p.ndim > 1 else 0.5))
    return module


def randn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
