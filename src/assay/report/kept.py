"""Which positions of the context were held, as strips: one strip a layer, one block a policy and budget."""

from __future__ import annotations

from dataclasses import dataclass

from assay.report.summary import Kept, Summary

LEVELS = 8  # shades between "no head holds it" and "every head holds it"


@dataclass(frozen=True)
class Strip:
    """An SVG stretched over the width of its column: `height` in pixels, coordinates `width` bins by `rows` layers."""

    name: str
    layers: str
    height: int
    width: int
    rows: int
    paths: tuple[tuple[float, str], ...]  # opacity, path data
    spans: tuple[tuple[float, float], ...]  # where the answer lies, in bins
    held: float  # share of all (layer, head, position) that is held


@dataclass(frozen=True)
class KeptTask:
    task: str
    example: int
    tokens: int
    strips: tuple[Strip, ...]
    spans: tuple[tuple[float, float], ...]  # in percent of the width


def kept_pictures(summary: Summary) -> list[KeptTask]:
    """One picture a task: the first example whose positions were recorded, in the order of policies and budgets."""
    pictures = []
    for task in summary.tasks:
        records = [k for k in summary.kept if k.task == task.name]
        if not records:
            continue
        example = min(k.example for k in records)
        order = {p: i for i, p in enumerate(summary.policies)}, {b: i for i, b in enumerate(summary.budgets)}
        chosen = sorted(
            (k for k in records if k.example == example), key=lambda k: (order[0].get(k.policy, 99), order[1].get(k.budget, 99))
        )
        tokens = chosen[0].tokens
        spans = tuple((100 * a / tokens, 100 * max(b - a, 1) / tokens) for a, b in chosen[0].spans)
        pictures.append(KeptTask(task.name, example, tokens, tuple(map(strip, chosen)), spans))
    return pictures


def strip(kept: Kept) -> Strip:
    layers = sorted(kept.layers)
    bins = max((len(kept.layers[layer]) for layer in layers), default=1)
    paths: dict[int, list[str]] = {}
    for row, layer in enumerate(layers):
        for level, start, length in runs(kept.layers[layer]):
            paths.setdefault(level, []).append(f"M{start} {row}h{length}v1h-{length}z")
    each = 10 if len(layers) <= 8 else 5 if len(layers) <= 24 else 3
    scale = bins / kept.tokens if kept.tokens else 1.0
    shares = [s for layer in layers for s in kept.layers[layer]]
    return Strip(
        name=f"{kept.policy}@{kept.budget}",
        layers=f"layer {layers[0]}" if len(layers) == 1 else f"layers {', '.join(map(str, layers))}" if len(layers) <= 4
        else f"layers {layers[0]}–{layers[-1]}",
        height=each * len(layers),
        width=bins,
        rows=len(layers),
        paths=tuple((level / LEVELS, "".join(parts)) for level, parts in sorted(paths.items())),
        spans=tuple((a * scale, max((b - a) * scale, 0.5)) for a, b in kept.spans),
        held=sum(shares) / len(shares) if shares else 0.0,
    )  # fmt: skip


def runs(shares: list[float]) -> list[tuple[int, int, int]]:
    """Stretches of equal shade: (level, start, length), without the empty ones."""
    found: list[tuple[int, int, int]] = []
    for at, share in enumerate(shares):
        level = min(LEVELS, max(0, round(share * LEVELS))) or (1 if share > 0 else 0)
        if found and found[-1][0] == level:
            found[-1] = (level, found[-1][1], found[-1][2] + 1)
        else:
            found.append((level, at, 1))
    return [run for run in found if run[0]]
