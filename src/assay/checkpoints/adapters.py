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
# entries that may say anything: they name modules and training, or are read here
_FREE = frozenset(
    "r lora_alpha use_rslora rank_pattern alpha_pattern fan_in_fan_out base_model_name_or_path revision peft_version task_type "
    "auto_mapping target_modules exclude_modules layers_to_transform layers_pattern lora_dropout inference_mode eva_config "
    "megatron_core qalora_group_size".split()
)
# and those that may say only this; any other entry may only be empty, since it makes an adapter something else than W + scale * B A
_PLAIN = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),  # others have changed the base, too
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
    """The base that an adapter names, if that is a folder or a file here. Raises AssayError where it is not, or is two."""
    named = _named(folder)
    # as PEFT reads it, from where one is, or from where the adapter is
    found = {path.resolve() for path in (Path(named).expanduser(), folder / named) if named and path.exists()}
    if len(found) > 1:
        raise AssayError(
            f"{folder} is an adapter of {named}, which is {' or '.join(map(str, sorted(found)))}: name the base"
        )
    if not found:
        raise without_base(folder)
    return str(found.pop())


def without_base(folder: Path) -> AssayError:
    """The error for an adapter alone."""
    return AssayError(
        f"{folder} is an adapter of {_named(folder) or 'a model that it does not name'}, which is no folder here: "
        f"name the base, as in assay.load('./base', adapter={str(folder)!r}) or './base+{folder}'"
    )


def _named(folder: Path) -> str:
    return str(read_json(folder / CONFIG).get("base_model_name_or_path") or "")


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
    halves, tables = _tensors(folder)
    pairs = _pairs(halves, folder)
    for apply in (False, True):  # all is tried before anything is changed, and never more than one matrix held twice
        for module, (down, up) in pairs.items():
            change = _scale(raw, module, len(down), folder) * (up.float() @ down.float())
            for name, place in _found(module, layout, places, model, folder):
                parameter = model.get_parameter(name)
                base = _table(tables[module], name, model, folder) if module in tables else parameter
                whole = base + _ours(change, name, place, layout, model, folder)
                if apply:
                    parameter.data = whole.to(parameter.dtype)
    return model


def _check_kind(raw: dict[str, Any], folder: Path) -> None:
    for entry, value in raw.items():
        if entry not in _FREE and value not in (None, False, [], {}, *_PLAIN.get(entry, ())):
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


def _tensors(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """A and B of each module, and the embeddings that PEFT writes along with what it adds to them."""
    if not (folder / WEIGHTS).exists():
        raise AssayError(f"{folder} holds no {WEIGHTS}; other files may run code when opened and are never read")
    file = open_safetensors(folder / WEIGHTS)
    halves: dict[str, dict[str, Tensor]] = {}
    tables: dict[str, Tensor] = {}
    for key in file.keys():
        module, _, last = key.removeprefix("base_model.model.").partition(".lora_")
        half, tensor = re.fullmatch(r"(embedding_)?([AB])(\.default)?(\.weight)?", last), file.get_tensor(key)
        if half is not None and tensor.ndim == 2:
            halves.setdefault(module, {})[half[2]] = tensor.T if half[1] else tensor
            if half[1]:
                halves[module]["turned"] = tensor
        elif key.endswith(".base_layer.weight"):
            tables[module.removesuffix(".base_layer.weight")] = tensor
        else:
            raise AssayError(f"{folder}: {key} is no A or B of a LoRA; plain LoRA alone is supported")
    if not halves:
        raise AssayError(f"{folder}: {WEIGHTS} is empty")
    return halves, tables


def _pairs(halves: dict[str, dict[str, Tensor]], folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """For each module (down, up), whose product up @ down is what is added. Of an embedding A is (r, rows), B (width, r)."""
    pairs = {}
    for module, found in halves.items():
        down, up = ("B", "A") if "turned" in found else ("A", "B")
        if down not in found or up not in found or len(found[down]) != found[up].shape[1]:
            raise AssayError(f"{folder}: {module} has no A and B of one rank")
        pairs[module] = found[down], found[up]
    return pairs


def _table(table: Tensor, name: str, model: Transformer, folder: Path) -> Tensor:
    """The embedding or readout that an adapter brings along, in place of the model's."""
    if name not in ("embed.weight", "unembed.weight") or table.shape != model.get_parameter(name).shape:
        raise AssayError(
            f"{folder}: it brings a matrix of its own, {tuple(table.shape)}, that {model.name} has no place for ({name})"
        )
    return table.to(model.device)


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
