"""Models built here that no other family has a place for: hybrids, latent attention, loops, experts. Names and config are our own.

seam: family
row: -
source: this library
object: FAMILY
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import Family, required
from assay.checkpoints.families.layout import Layout
from assay.core import registry
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.checkpoints.gguf_file import GGUFFile


def read(raw: dict[str, Any]) -> TransformerConfig:
    (transformer,) = required(raw, "transformer")
    config = TransformerConfig.from_json(json.dumps(transformer))
    for spec in [config.depth, *(spec for block in config.blocks for spec in (block.mixer, block.channel))]:
        position = spec.options.get("position")
        for part in (spec.part, position.get("part") if isinstance(position, dict) else None):
            if ".py" in str(part) and not registry.imported(part):
                raise AssayError(
                    f"the config names {part}, and loading runs no code that a checkpoint names: if you trust it, "
                    f"call assay.core.registry.get({part!r}) before"
                )
    return config


def write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "architectures": ["AssayForCausalLM"],
        "model_type": "assay",
        "vocab_size": config.vocab_size,
        "transformer": json.loads(config.to_json()),
    }


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    raise AssayError("GGUF files have no place for models of this library's own layout; save a folder instead")


FAMILY = Family(
    name="native",
    architectures=("AssayForCausalLM",),
    model_types=("assay",),
    gguf_architecture="assay",
    read=read,
    write=write,
    read_gguf=read_gguf,
    folder=Layout(None),
    gguf=Layout(None),
    general=True,
)
