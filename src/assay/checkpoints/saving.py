"""Write a model as a Hugging Face folder that transformers and this library load."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from assay.checkpoints import catalogue
from assay.checkpoints.families.common import Family
from assay.checkpoints.filling import theirs_from
from assay.checkpoints.safetensors_files import write_safetensors
from assay.core.errors import AssayError
from assay.core.transformer import Transformer


def save(model: Transformer, folder: str | Path, *, family: str | None = None, shard_bytes: int | None = None) -> Path:
    """Write config.json, safetensors (in shards of at most `shard_bytes`, if given) and the tokenizer's files; the folder is returned.

    `family` is the one to write; without it, the one the model came from or else the first that can express it. Nothing
    appears before all is written, and nothing is overwritten. Raises AssayError where the folder holds something, or the
    family cannot express the model.
    """
    target = Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AssayError(f"{target} is there already and is not overwritten; name a new folder")
    chosen, config = _named(model, family) if family else _expressed(model)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            write_safetensors(made, theirs_from(chosen.folder, model), shard_bytes)
            if model.tokenizer is not None and hasattr(model.tokenizer, "save"):
                model.tokenizer.save(made)
            config |= _tokens(model.tokenizer) | {"dtype": str(model.embed.weight.dtype).removeprefix("torch.")}
            (made / "config.json").write_text(json.dumps(config, indent=1))
            made.rename(target)
    except OSError as error:
        raise AssayError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _named(model: Transformer, name: str) -> tuple[Family, dict[str, Any]]:
    families = {family.name: family for family in catalogue.families()}
    if name not in families:
        raise AssayError(f"unknown family {name!r}; there are {', '.join(families)}")
    return families[name], families[name].write(model.config)


def _expressed(model: Transformer) -> tuple[Family, dict[str, Any]]:
    origin = getattr(model, "family", None)
    families = sorted(catalogue.families(), key=lambda family: (family.name != origin, family.general))
    reasons = []
    for family in families:
        try:
            return family, family.write(model.config)
        except AssayError as error:
            reasons.append(str(error).partition(";")[0])
    raise AssayError(f"no family of checkpoints has a place for this model: {'; '.join(reasons)}")


def _tokens(tokenizer: Any) -> dict[str, Any]:
    ends = list(getattr(tokenizer, "ends", ()))
    return {
        "bos_token_id": getattr(tokenizer, "bos", None),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": getattr(tokenizer, "pad", None),
    }
