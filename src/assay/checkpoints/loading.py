"""Load a model by name: a folder, a GGUF file, a bundled checkpoint, a model trained here, a hub id."""

from __future__ import annotations

import contextlib
import importlib
import importlib.resources
import importlib.util
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay.checkpoints import catalogue
from assay.checkpoints.adapters import base_of, is_adapter, merge, split_name, without_base
from assay.checkpoints.cache import cache_folder, checksum, copy_folder, drop_copy, store_copy
from assay.checkpoints.files import read_json
from assay.checkpoints.filling import fill, hollow, ours_from
from assay.checkpoints.gguf_file import GGUFFile
from assay.checkpoints.memory import check_fits, weight_bytes
from assay.checkpoints.safetensors_files import SafetensorsFolder, write_safetensors
from assay.checkpoints.tokenizer import Tokenizer, tokenizer_from_folder
from assay.core import registry
from assay.core.build import build
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja")


def load(
    name: str | Path, *, adapter: str | Path | None = None, device: str = "cpu", dtype: str = "float32"
) -> Transformer:
    """The model `name`, in eval mode, with `.tokenizer`, `.name` and (of a checkpoint) `.family`.

    `name`: a folder with config.json and safetensors, a .gguf file, a name that `models()` lists, or a hub id (organisation/name; fetched
    once, safetensors and JSON only). `adapter`: a folder with a LoRA adapter to merge, which may also be said as `./base+./adapter`; an
    adapter's folder alone brings the base that it names, if that lies here. `dtype` is how matrices are stored: float32, bfloat16,
    float16 or float64. No code of a checkpoint is ever run. Raises AssayError where it cannot be found, read, or held in memory.
    """
    where, kind = _device(device), _dtype(dtype)
    text, adapters = split_name(str(name))
    path = Path(text).expanduser()
    if is_adapter(path) and not (path / "config.json").exists():
        text, adapters = base_of(path), [path, *adapters]
    adapters += [Path(adapter).expanduser()] if adapter is not None else []
    model = _load(text, where, kind)
    for folder in adapters:
        merge(model, folder)
    return _named(model, "+".join([model.name, *(folder.resolve().name for folder in adapters)]))


def _load(text: str, where: torch.device, kind: torch.dtype) -> Transformer:
    path = Path(text).expanduser()
    if path.is_dir():
        return _named(load_folder(path, where, kind), path.resolve().name)
    if path.is_file():
        if path.suffix != ".gguf":
            raise AssayError(f"{path} is neither a folder nor a .gguf file")
        return _named(_load_gguf(path, path.stem, checksum(path), where, kind), path.stem)
    if bundled := catalogue.bundled(text):
        return _named(_load_bundled(bundled, where, kind), text)
    if (subject := _subject(text)) is not None:
        return _named(subject.load(device=where, dtype=kind), text)
    if text.startswith((".", "/", "~")) or text.endswith(".gguf"):
        raise AssayError(f"there is no folder or file {path}")
    if text.count("/") == 1:
        return _named(load_folder(_fetch(text), where, kind), text)
    raise catalogue.unknown(text)


def load_folder(folder: Path, device: torch.device, dtype: torch.dtype) -> Transformer:
    """A Hugging Face folder."""
    if not (folder / "config.json").exists():
        if is_adapter(folder):
            raise without_base(folder)
        raise AssayError(f"{folder} holds no config.json, so it is no checkpoint")
    raw = read_json(folder / "config.json")
    if quantised := raw.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise AssayError(
            f"{folder} was quantised by another tool ({method or 'unnamed'}), whose codes are not read: "
            "load the weights it was made from, or a GGUF file"
        )
    family = catalogue.family_of(raw, folder)
    with _meant(folder / "config.json"):
        model = hollow(family.read(raw))
    check_fits(str(folder), weight_bytes(model, dtype), device, dtype)
    files = SafetensorsFolder(folder)
    tensors = ours_from(family.folder, model, files.names(), files.read, folder)
    return _finished(fill(model, tensors, device, dtype), tokenizer_from_folder(folder), family.name)


def _load_bundled(bundled: catalogue.Bundled, device: torch.device, dtype: torch.dtype) -> Transformer:
    if importlib.util.find_spec(bundled.module) is None:
        raise AssayError(f"{bundled.name} is not installed: pip install 'assay[{bundled.extra}]'")
    if bundled.folder is not None:
        return load_folder(Path(str(importlib.resources.files(bundled.module) / bundled.folder)), device, dtype)
    module = importlib.import_module(bundled.module)
    key = module.EXPECTED_SHA256
    if copy_folder(bundled.name, key).exists():
        return _load_gguf(None, bundled.name, key, device, dtype)
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".part-") as folder:
            return _load_gguf(module.assemble(Path(folder) / "model.gguf"), bundled.name, key, device, dtype)
    except OSError as error:
        raise AssayError(f"cannot put {bundled.name} together in {cache_folder()}: {error.strerror or error}") from None


def _load_gguf(path: Path | None, stem: str, key: str, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Through the converted copy, which is made if need be; `path` may be None where the copy exists."""
    folder = copy_folder(stem, key)
    if folder.exists():
        try:
            return _load_copy(folder, device, dtype)
        except AssayError as error:
            if path is None or "takes" in str(error):
                raise
            drop_copy(folder)
    config, tensors, tokenizer, family = _convert(path, device, dtype)

    def write(target: Path) -> None:
        write_safetensors(target, tensors)
        tokenizer.save(target)
        (target / "assay.json").write_text(config.to_json())
        (target / "family").write_text(family)

    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if store_copy(folder, size, write):
        del tensors
        return _load_copy(folder, device, dtype, tokenizer)
    return _finished(fill(hollow(config), tensors, device, dtype), tokenizer, family)


def _convert(
    path: Path, device: torch.device, dtype: torch.dtype
) -> tuple[TransformerConfig, dict[str, Tensor], Tokenizer, str]:
    from assay.checkpoints.gguf_tokenizer import tokenizer_from_gguf

    file = GGUFFile(path)
    family = _gguf_family(file)
    with _meant(path):
        config = family.read(family.read_gguf(file))
        model = hollow(config)
    check_fits(str(path), weight_bytes(model, torch.float32), torch.device("cpu"), torch.float32)

    def read(name: str) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(file.read(name)))

    with ThreadPoolExecutor(
        1
    ) as beside:  # a large vocabulary takes as long as the tensors, and neither fills two cores
        tokenizer = beside.submit(tokenizer_from_gguf, file.metadata)
        tensors = ours_from(family.gguf, model, file.tensors, read, path)
        with _meant(path):
            return config, tensors, tokenizer.result(), family.name


@contextlib.contextmanager
def _meant(path: Path) -> Iterator[None]:
    """What a file says may be of any kind: what no model can be made of is the file's fault."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise AssayError(f"{path} cannot be used: {type(error).__name__}: {error}") from error


def _gguf_family(file: GGUFFile):
    architecture = file.metadata.get("general.architecture")
    known = {family.gguf_architecture: family for family in catalogue.families() if family.gguf_architecture}
    if architecture not in known:
        raise AssayError(
            f"{file.path}: architecture {architecture} is not supported; supported are {', '.join(sorted(known))}"
        )
    return known[architecture]


def _load_copy(
    folder: Path, device: torch.device, dtype: torch.dtype, tokenizer: Tokenizer | None = None
) -> Transformer:
    try:
        config = TransformerConfig.from_json((folder / "assay.json").read_text())
        family = (folder / "family").read_text()
    except OSError as error:
        raise AssayError(f"cannot read {folder}: {error.strerror}") from None
    model = hollow(config)
    check_fits(folder.name, weight_bytes(model, dtype), device, dtype)
    files = SafetensorsFolder(folder)
    tensors = {name: files.read(name) for name in files.names()}
    return _finished(fill(model, tensors, device, dtype), tokenizer or tokenizer_from_folder(folder), family)


def _subject(text: str):
    """The model trained here that an expression names, such as `trace-small(kv_heads=4)`; None where it names none."""
    try:
        registry.find(text.partition("(")[0].strip(), "subject")
    except AssayError:
        return None
    return build(text, "subject")


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_HUB_FILES), ignore_patterns=["*/*"]))
    except Exception as error:  # the library raises many kinds, some of the network below it
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AssayError(
            f"cannot fetch {name} from the hub ({reason}); a folder or .gguf file loads without it"
        ) from None


def _named(model: Transformer, name: str) -> Transformer:
    model.name = name
    return model


def _finished(model: Transformer, tokenizer: Tokenizer | None, family: str) -> Transformer:
    model.tokenizer, model.family = tokenizer, family
    return model


def _dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise AssayError(f"dtype {name!r} is unknown; there are {', '.join(_DTYPES)}")
    return getattr(torch, name)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise AssayError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device
