"""One colour and one marker a policy, the same in every plot, apart for colour-blind readers by shape as well."""

from __future__ import annotations

LIGHT = ("#2160c4", "#c8384f", "#0b8268", "#b06508", "#7446bd", "#b83585", "#4a7a10", "#0b6f8c")
DARK = ("#74abff", "#ff8b97", "#4fd0ab", "#f0b04c", "#b99dff", "#f58fca", "#a6d05a", "#62d1e8")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
RANDOM_LIGHT, RANDOM_DARK = "#85888f", "#8f949e"


def styles(policies: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """`light`, `dark` and `symbol` for every policy but full; random, the dull baseline, is grey and dashed."""
    shown = [p for p in policies if p not in ("full", "random")]
    found = {
        p: {
            "light": LIGHT[i % len(LIGHT)],
            "dark": DARK[i % len(DARK)],
            "symbol": SYMBOLS[i % len(SYMBOLS)] + ("" if i < len(LIGHT) else "-open"),
            "dash": "solid",
        }
        for i, p in enumerate(shown)
    }
    if "random" in policies:
        found["random"] = {"light": RANDOM_LIGHT, "dark": RANDOM_DARK, "symbol": "x-thin", "dash": "dash"}
    return {p: found[p] for p in policies if p in found}
