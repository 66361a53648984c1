"""Rotary positions between config.json and our `rope` part.

transformers 5 writes `rope_parameters` (one dict, or one for each kind of layer); before, there were `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from typing import Any

from assay.checkpoints.families.common import required
from assay.core.errors import AssayError

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rope(
    raw: dict[str, Any], theta: float = 10_000.0, layers: str | None = None, *, partial: bool = False
) -> dict[str, Any]:
    """Our position from config.json's contents.

    `layers`: the kind of layers it is for, where kinds differ; `theta`: the family's default; `partial`: whether its heads may
    turn in part.
    """
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if layers in given:
        given = given[layers]
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _KINDS:
        raise AssayError(f"rope scaling {kind!r} is not supported; there are {', '.join(_KINDS)}")
    options: dict[str, Any] = {"theta": float(given.get("rope_theta") or raw.get("rope_theta") or theta)}
    fraction = given.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if fraction not in (None, 1, 1.0):
        if not partial:
            raise AssayError(
                f"partial_rotary_factor={fraction} is not supported in this family, whose heads turn whole"
            )
        options["fraction"] = fraction
    if kind != "default":
        options["scaling"] = _read_longrope(given, raw) if kind == "longrope" else _read_scaling(kind, given, raw)
    return {"part": "rope", "options": options}


def _read_scaling(kind: str, given: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    context = raw.get("max_position_embeddings")
    original = given.get("original_max_position_embeddings") or context
    try:
        scaling: dict[str, Any] = {"kind": kind, "factor": given["factor"]}
        if kind == "dynamic":
            scaling["original"] = context
        if kind == "llama3":
            scaling |= {"low": given["low_freq_factor"], "high": given["high_freq_factor"], "original": original}
    except KeyError as error:
        raise AssayError(f"config.json's {kind} rope scaling lacks {error}") from None
    if kind == "yarn":
        if given.get("truncate") is False:
            raise AssayError("yarn rope scaling with truncate=false is not supported")
        scaling |= {"original": original, "attention_factor": _yarn_gain(given)}
        scaling |= {name: given[name] for name in ("beta_fast", "beta_slow") if given.get(name)}
    return scaling


def _read_longrope(given: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    short, long = required(given, "short_factor", "long_factor")
    (context,) = required(raw, "max_position_embeddings")
    original = raw.get("original_max_position_embeddings") or given.get("original_max_position_embeddings") or context
    factor, gain = given.get("factor") or context / original, given.get("attention_factor")
    if gain is None:
        gain = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {"kind": "longrope", "short": short, "long": long, "original": original, "attention_factor": gain}


def _yarn_gain(given: dict[str, Any]) -> float:
    def gain(weight: float) -> float:
        return 0.1 * weight * math.log(given["factor"]) + 1 if given["factor"] > 1 else 1.0

    if given.get("attention_factor") is not None:
        return given["attention_factor"]
    over, under = given.get("mscale"), given.get("mscale_all_dim")
    return gain(over) / gain(under) if over and under else gain(1)


def write_rope(position: dict[str, Any] | None, family: str, *, partial: bool = False) -> dict[str, Any]:
    """`rope_parameters` from our position. Raises AssayError for positions that are not rope's."""
    if not position or position["part"] != "rope" or position["options"].get("interleaved"):
        raise AssayError(f"{family} files cannot express the position {position}; only rope, not interleaved")
    options = position["options"]
    written: dict[str, Any] = {"rope_type": "default", "rope_theta": options.get("theta", 10_000.0)}
    if options.get("fraction", 1) != 1:
        if not partial:
            raise AssayError(f"{family} files cannot express heads that turn in part")
        written["partial_rotary_factor"] = options["fraction"]
    scaling = dict(options.get("scaling") or {})
    if scaling:
        names = {
            "kind": "rope_type",
            "low": "low_freq_factor",
            "high": "high_freq_factor",
            "original": "original_max_position_embeddings",
            "short": "short_factor",
            "long": "long_factor",
        }
        if scaling["kind"] == "dynamic":
            scaling.pop("original")
        written |= {names.get(key, key): value for key, value in scaling.items()}
    return written
