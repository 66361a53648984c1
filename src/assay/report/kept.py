"""Which tokens of a context were held: over its text, and as strips of one line a layer. Data for the page's script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.report.summary import Kept, Passage, Summary

LEVELS = 8  # shades between "no head holds it" and "every head holds it"


def kept_pictures(summary: Summary) -> list[dict[str, Any]]:
    """One picture a task: the first example whose positions were recorded, in the order of policies and budgets.

    `pieces`: the context's tokens as text; each cell's `shades` is one digit a token, its `bins` one text of levels a layer.
    """
    pictures = []
    for task in summary.tasks:
        records = [k for k in summary.kept if k.task == task.name]
        if not records:
            continue
        example = min(k.example for k in records)
        chosen = sorted((k for k in records if k.example == example), key=lambda k: _place(summary, k))
        pictures.append({
            "task": task.name,
            "example": example,
            "tokens": chosen[0].tokens,
            "spans": chosen[0].spans,
            "pieces": summary.texts.get((task.name, example), ()),
            "cells": [_cell(k) for k in chosen],
        })  # fmt: skip
    return pictures


def _place(summary: Summary, kept: Kept) -> tuple[int, int]:
    orders = (summary.policies, kept.policy), (summary.budgets, kept.budget)
    return tuple(order.index(name) if name in order else len(order) for order, name in orders)  # type: ignore[return-value]


def _cell(kept: Kept) -> dict[str, Any]:
    shares = [s for layer in kept.layers.values() for s in layer]
    return {
        "name": f"{kept.policy}@{kept.budget}",
        "policy": kept.policy,
        "held": sum(shares) / len(shares) if shares else 0.0,
        "shades": kept.shades,
        "layers": sorted(kept.layers),
        "bins": [levels(kept.layers[layer]) for layer in sorted(kept.layers)],
    }


def levels(shares: Sequence[float]) -> str:
    """One digit a bin: 0 where no head holds it, LEVELS where all do; hardly held is not the same as not held."""
    return "".join(str(min(LEVELS, max(0, round(s * LEVELS))) or (1 if s > 0 else 0)) for s in shares)


def runs(passage: Passage) -> list[tuple[str, str, bool]]:
    """Stretches of a passage that are held alike: (text, digit, whether it states the answer)."""
    found: list[tuple[str, str, bool]] = []
    for at, (piece, shade) in enumerate(zip(passage.pieces, passage.shades, strict=True)):
        answer = passage.answer[0] <= at < passage.answer[1]
        if found and found[-1][1:] == (shade, answer):
            found[-1] = (found[-1][0] + piece, shade, answer)
        else:
            found.append((piece, shade, answer))
    return found
