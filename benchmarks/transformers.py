"""Greedy text and perplexity with the full cache, beside transformers with its own cache: the same weights, the same prompts.

python -m benchmarks.transformers [--models llama,qwen3,gemma-3-270m] [--rounds 3]

Prints one table for docs/peers.md. A cell is one prompt's work (or one left-padded batch's), timed in turns; its seconds are the
median over rounds of processor time, which other work on the machine does not lengthen: run with OMP_NUM_THREADS=1 to read them
as such. Equal tokens are counted over all that were generated, perplexities compared as they are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.models import FAMILIES, MEDIUM, some_tokens, write_checkpoint
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

import assay
from assay.core.generation import left_padded
from assay.core.transformer import Transformer

NEW = 32
LENGTHS = [512, 512, 512, 300]


@dataclass(frozen=True)
class Cell:
    """One kind of work and both sides' way to do it; each returns token rows or a perplexity."""

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def cells(model: Transformer, peer: Any, prompts: list[list[int]]) -> list[Cell]:
    batch, text = prompts, prompts[0] + prompts[1]
    return [
        Cell(
            f"greedy, {len(prompts[0])} + {NEW} tokens",
            lambda: greedy(model, prompts[:1]),
            lambda: peer_greedy(peer, prompts[:1]),
        ),
        Cell(
            f"greedy, left-padded batch of {len(batch)}",
            lambda: greedy(model, batch),
            lambda: peer_greedy(peer, batch),
        ),
        Cell(
            f"perplexity of the last {len(text) // 4} of {len(text)}",
            lambda: perplexity(model, text),
            lambda: peer_perplexity(peer, text),
        ),
    ]


def greedy(model: Transformer, rows: list[list[int]]) -> list[list[int]]:
    return model.generate(rows, max_tokens=NEW)


def peer_greedy(peer: Any, rows: list[list[int]]) -> list[list[int]]:
    tokens, valid = left_padded(rows)
    out = peer.generate(tokens, attention_mask=valid.long(), max_new_tokens=NEW, do_sample=False)
    return out[:, tokens.shape[1] :].tolist()


@torch.inference_mode()
def perplexity(model: Transformer, text: list[int]) -> float:
    """Of the last quarter, after the rest was taken in."""
    tokens, cut = torch.tensor([text]), len(text) - len(text) // 4
    state = model.start(1)
    first, _ = model(tokens[:, :cut], state, logits="last")
    rest, _ = model(tokens[:, cut:-1], state)
    return _perplexity(torch.cat([first, rest], 1), tokens[:, cut:])


@torch.inference_mode()
def peer_perplexity(peer: Any, text: list[int]) -> float:
    tokens, cut = torch.tensor([text]), len(text) - len(text) // 4
    cache = DynamicCache(config=peer.config)
    first = peer(tokens[:, :cut], past_key_values=cache, logits_to_keep=1).logits
    rest = peer(tokens[:, cut:-1], past_key_values=cache).logits
    return _perplexity(torch.cat([first, rest], 1), tokens[:, cut:])


def _perplexity(logits: Tensor, tokens: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits[0].float(), tokens[0]).exp())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    out = work()
    return time.process_time() - begun, out


def both(name: str, folder: Path) -> tuple[Transformer, Any]:
    """The same weights on both sides, by way of a folder."""
    if name in FAMILIES:
        write_checkpoint(folder, name, MEDIUM)
        model = assay.load(folder)
    else:
        model = assay.load(name)
        assay.save(model, folder)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    # both sides write equally many tokens
    peer.generation_config.eos_token_id = None
    peer.generation_config.pad_token_id = 0
    model.tokenizer = None
    return model, peer


def agreement(ours: Any, theirs: Any) -> str:
    if isinstance(ours, float):
        return f"{ours:.4f} and {theirs:.4f}"
    pairs = [(a, b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)} tokens equal"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--models", default="llama,qwen3,gemma-3-270m")
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    print("| model | cell | assay s | transformers s | ratio | agreement |\n| --- | --- | --- | --- | --- | --- |")
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            model, peer = both(name, Path(folder) / name)
            prompts = [some_tokens(length, 512, seed) for seed, length in enumerate(LENGTHS)]
            for cell in cells(model, peer, prompts):
                seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
                cell.ours(), cell.theirs()
                for _ in range(given.rounds):
                    for side in ("ours", "theirs"):
                        seconds[side].append(timed(getattr(cell, side))[0])
                ours, theirs = (statistics.median(seconds[side]) for side in ("ours", "theirs"))
                said = agreement(cell.ours(), cell.theirs())
                print(
                    f"| {name} | {cell.name} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} | {said} |", flush=True
                )


if __name__ == "__main__":
    main()
