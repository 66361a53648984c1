"""The other implementations that a model is timed against: transformers on the same weights, llama.cpp where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.checkpoints import catalogue, save
from assay.core.transformer import Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def missing(package: str) -> str | None:
    """Why a package cannot be compared with, or None."""
    return None if importlib.util.find_spec(package) else f"{package} is not installed"


def same_in_transformers(model: Transformer, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' own model with this one's weights, by way of a folder that is written once."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    if not folder.exists():
        save(model, folder)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
    # an end token would stop generation early; all sides write equally many
    peer.generation_config.eos_token_id = None
    peer.generation_config.pad_token_id = 0
    return peer


class _Clock:
    """A streamer of transformers' `generate`: the time of every token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def transformers_steps(peer: PreTrainedModel, prompt: Int[Tensor, "1 tokens"], tokens: int) -> list[float]:
    """Seconds between the tokens that `generate` gives greedily, prefill left out."""
    clock = _Clock()
    peer.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, streamer=clock
    )
    times = clock.times[1:]  # the first is the prompt's
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def transformers_prefill(peer: PreTrainedModel, prompt: Int[Tensor, "1 tokens"]) -> Tensor:
    """Logits of the last position, with a cache to go on from."""
    with torch.no_grad():
        return peer(prompt, use_cache=True, logits_to_keep=1).logits


def llama_cpp_steps(name: str, folder: Path, prompt: list[int], tokens: int, threads: int) -> list[float]:
    """Seconds between tokens of llama.cpp on the GGUF file that the model came from (its own number of bits)."""
    from llama_cpp import Llama

    peer = Llama(model_path=str(gguf_of(name, folder)), n_ctx=2048, n_threads=threads, verbose=False)
    times: list[float] = []
    for _ in peer.generate(prompt, temp=0.0):
        times.append(time.perf_counter())
        if len(times) == tokens:
            break
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def gguf_of(name: str, folder: Path) -> Path | None:
    """The GGUF file behind a name: itself, or a bundled one put together in `folder`; None where there is none."""
    if name.endswith(".gguf"):
        return Path(name).expanduser()
    bundled = catalogue.bundled(name)
    if bundled is None or missing(bundled.module):
        return None
    path = folder / "model.gguf"
    if not path.exists():
        module: Any = importlib.import_module(bundled.module)
        module.assemble(path)
    return path
