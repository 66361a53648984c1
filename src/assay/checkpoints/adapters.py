"""LoRA adapters: what PEFT writes into a folder, merged into the matrices of the model that it was trained on.

W + scale * B A, with scale = alpha / r (Hu et al. 2021, arXiv:2106.09685) or alpha / sqrt(r) (Kalajdzievski 2023, arXiv:2312.03732).
Modules are named as in the model's Hugging Face folder, wherever it was loaded from.
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.checkpoints import catalogue
from assay.checkpoints.families.layout import Layout, Part
from assay.checkpoints.files import read_json
from assay.checkpoints.safetensors_files import listed, open_safetensors
from assay.core.errors import AssayError
from assay.core.transformer import Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# entries that make an adapter something other than W + scale * B A, with what they may say
_PLAIN = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),  # others have changed the base, too
    **dict.fromkeys(
        (
            "use_dora",
            "modules_to_save",
            "lora_bias",
            "layer_replication",
            "target_parameters",
            "trainable_token_indices",
            "alora_invocation_tokens",
            "arrow_config",
            "use_qalora",
            "use_bdlora",
            "megatron_config",
        ),
        (),
    ),
}
_MATRIX = re.compile(r"^(blocks\.\d+\.(mixer|channel)\.\w+|embed|unembed)\.weight$")


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).exists()


def split_name(text: str) -> tuple[str, list[Path]]:
    """The base and the adapters of a name such as `./base+./lora`; a path that is there as it stands is no such name."""
    adapters: list[Path] = []
    while "+" in text and not Path(text).expanduser().exists():
        base, _, last = text.rpartition("+")
        folder = Path(last.strip()).expanduser()
        if not (base and (is_adapter(folder) or last.strip().startswith((".", "/", "~")))):
            break
        text, adapters = base.strip(), [folder, *adapters]
    return text, adapters


def base_of(folder: Path) -> str:
    """The base that an adapter names, if that is a folder or a file here. Raises AssayError where it is not."""
    named = read_json(folder / CONFIG).get("base_model_name_or_path")
    for path in (Path(str(named)).expanduser(), folder / str(named)) if named else ():
        if path.exists():
            return str(path)
    raise AssayError(
        f"{folder} is an adapter of {named or 'a model that it does not name'}, which is no folder here: "
        f"name the base, as in assay.load('./base', adapter={str(folder)!r}) or './base+{folder}'"
    )


@torch.no_grad()
def merge(model: Transformer, folder: Path) -> Transformer:
    """Add the adapter in `folder` to the model's matrices; nothing is changed where anything does not fit.

    Raises AssayError for a folder without adapter, an adapter of another kind than LoRA, and modules that the model lacks.
    """
    if not is_adapter(folder):
        raise AssayError(f"{folder} holds no {CONFIG}, so it is no adapter")
    raw = read_json(folder / CONFIG)
    _check_kind(raw, folder)
    layout = _layout(model)
    places = _places(model, layout)
    changed: dict[str, Tensor] = {}
    for module, (down, up) in _pairs(folder).items():
        change = _scale(raw, module, len(down), folder) * (up.float() @ down.float())
        for name, place in _found(module, layout, places, model, folder):
            changed[name] = model.get_parameter(name) + _ours(change, name, place, layout, model, folder)
    for name, whole in changed.items():
        parameter = model.get_parameter(name)
        parameter.data = whole.to(parameter.dtype)
    return model


def _check_kind(raw: dict[str, Any], folder: Path) -> None:
    for entry, allowed in _PLAIN.items():
        value = raw.get(entry)
        if value not in (None, False, [], {}, *allowed):
            raise AssayError(f"{folder}: an adapter with {entry}={value!r} is not supported; plain LoRA is")


def _layout(model: Transformer) -> Layout:
    origin = getattr(model, "family", None)
    for family in catalogue.families():
        if family.name == origin:
            return family.folder
    raise AssayError(f"{model.name} is of no family of checkpoints, so no adapter belongs to it")


def _places(model: Transformer, layout: Layout) -> dict[str, list[tuple[str, Part]]]:
    """Our matrices by the name of theirs that holds them."""
    found: dict[str, list[tuple[str, Part]]] = {}
    for name, _ in model.named_parameters():
        if _MATRIX.match(name):
            place = layout.theirs(name)
            found.setdefault(place.name, []).append((name, place))
    return found


def _pairs(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each module. Of an embedding, A is (r, rows) and B (width, r)."""
    if not (folder / WEIGHTS).exists():
        raise AssayError(f"{folder} holds no {WEIGHTS}; other files may run code when opened and are never read")
    file = open_safetensors(folder / WEIGHTS)
    halves: dict[str, dict[str, Tensor]] = {}
    for key in file.keys():
        match = re.match(r"^(?:base_model\.model\.)?(.+)\.lora_(embedding_)?(A|B)(?:\.default)?(?:\.weight)?$", key)
        tensor = file.get_tensor(key)
        if match is None or tensor.ndim != 2:
            raise AssayError(f"{folder}: {key} is no A or B of a LoRA; plain LoRA alone is supported")
        halves.setdefault(match[1], {})[match[3]] = tensor
        if match[2]:  # the table that is added to has its rows first
            halves[match[1]]["turned"] = tensor
    if not halves:
        raise AssayError(f"{folder}: {WEIGHTS} is empty")
    pairs = {}
    for module, found in halves.items():
        down, up = found.get("A"), found.get("B")
        if down is None or up is None or len(down) != up.shape[1]:
            raise AssayError(f"{folder}: {module} has no A and B of one rank")
        pairs[module] = (up.T, down.T) if "turned" in found else (down, up)
    return pairs


def _scale(raw: dict[str, Any], module: str, rank: int, folder: Path) -> float:
    wanted = _of_module(raw.get("rank_pattern"), module, raw.get("r", 8))
    if wanted != rank:
        raise AssayError(f"{folder}: {module} has rank {rank}, and {CONFIG} says {wanted}")
    alpha = _of_module(raw.get("alpha_pattern"), module, raw.get("lora_alpha", 8))
    return alpha / (math.sqrt(rank) if raw.get("use_rslora") else rank)


def _of_module(patterns: dict[str, Any] | None, module: str, usual: Any) -> Any:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return usual


def _found(
    module: str, layout: Layout, places: dict[str, list[tuple[str, Part]]], model: Transformer, folder: Path
) -> list[tuple[str, Part]]:
    theirs = layout.usual(f"{module}.weight")
    if model.config.tied and theirs in (layout.theirs("embed.weight").name, layout.theirs("unembed.weight").name):
        raise AssayError(
            f"{folder}: it adapts {module}, which {model.name} uses as embedding and readout at once: merged, it would change both"
        )
    if theirs not in places:
        near = get_close_matches(str(theirs), list(places), 3, 0.0)
        raise AssayError(f"{folder}: {model.name} has no module {module} to adapt; nearest: {listed(near)}")
    return places[theirs]


def _ours(change: Tensor, name: str, place: Part, layout: Layout, model: Transformer, folder: Path) -> Tensor:
    """The part of what is added to theirs, (out, in), that falls to our matrix."""
    wanted = model.get_parameter(name).shape
    try:
        part = layout.turn(name, place.cut(layout.turn(name, change), model.config))
    except RuntimeError:
        part = change
    if part.shape != wanted:
        raise AssayError(
            f"{folder}: what it adds to {place.name} has shape {tuple(change.shape)}, which does not fit {model.name}"
        )
    return part.to(model.device)
