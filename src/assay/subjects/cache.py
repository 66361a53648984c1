"""Trained subjects on disk: one folder a recipe, written whole or not at all, checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from rich.console import Console

from assay.checkpoints.cache import cache_folder
from assay.checkpoints.files import read_json
from assay.checkpoints.safetensors_files import SINGLE, SafetensorsFolder, write_safetensors
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer


def folder_of(name: str, fingerprint: str) -> Path:
    """Where the subject of this recipe is kept, or would be."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-")
    return cache_folder() / "subjects" / f"{plain}-{fingerprint}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the only right to make `folder`; wait, and say so, while another process has it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(folder.name + ".lock"))
        try:
            lock.acquire(timeout=1)
        except Timeout:
            Console(stderr=True).print(f"waiting: another process is training {folder.name}")
            lock.acquire()
    except OSError as error:
        raise AssayError(
            f"cannot write to the cache {folder.parent} ({error.strerror}); set ASSAY_CACHE to another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def read(folder: Path) -> Transformer | None:
    """The model in `folder`; None where there is none or where what is there is damaged."""
    try:
        made = read_json(folder / "training.json")
        if made["sha256"] != checksum(folder):
            return None
        model = Transformer(TransformerConfig.from_json((folder / "config.json").read_text(encoding="utf-8")))
        weights = SafetensorsFolder(folder)
        model.load_state_dict({name: weights.read(name) for name in weights.names()})
    except (AssayError, OSError, KeyError, RuntimeError):
        return None
    return model.eval()


def write(folder: Path, model: Transformer, tokenizer: Any, made: dict[str, Any]) -> None:
    """Put model, tokenizer and what is known of the training into `folder`, which appears only when complete."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(parents=True)
        write_safetensors(temporary, model.state_dict())
        (temporary / "config.json").write_text(model.config.to_json(), encoding="utf-8")
        tokenizer.save(temporary)
        record = json.dumps({**made, "sha256": checksum(temporary)}, indent=1, sort_keys=True)
        (temporary / "training.json").write_text(record, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
    except OSError as error:
        raise AssayError(f"cannot write {folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def checksum(folder: Path) -> str:
    """Of the weights and of the config that says what they are."""
    digest = hashlib.sha256((folder / SINGLE).read_bytes())
    digest.update((folder / "config.json").read_bytes())
    return digest.hexdigest()
