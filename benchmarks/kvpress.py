"""The policies that kvpress has too: are the same tokens kept, how long does a cell take, how many bytes are really held?

In an environment of its own, as kvpress 0.5.5 wants transformers < 5.3:
  pip install kvpress==0.5.5 'transformers<5.3' torch==2.13.0 jaxtyping gguf einops typer rich scipy && pip install --no-deps -e .
  python -m benchmarks.kvpress                   # the tables of docs/peers.md
  python -m benchmarks.kvpress --fixture tests/fixtures/kvpress.json   # what tests/efficiency/cache/test_peers.py compares with

Both sides read the same checkpoint folders and the same tokens. A cell is one policy at one budget on one prompt: compress the
context, take in the question, write an answer. kvpress's own pipeline reads the context once a cell, assay once for all cells.
Seconds are processor time, which other work on the machine does not lengthen: run with OMP_NUM_THREADS=1 to read them as such.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kvpress
import torch
import transformers
from benchmarks.models import FAMILIES, MEDIUM, TINY, some_tokens, write_checkpoint
from benchmarks.pairs import PAIRS, Pair
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

import assay
from assay.core.compression import Compression
from assay.core.expressions import build
from assay.core.transformer import Transformer

CONTEXT, DROPPED = 200, 0.6  # of the comparison of kept tokens
LONG, QUESTION, ANSWER = (
    1920,
    16,
    8,
)  # tokens, of the timing; whole chunks, or layers of kvpress would keep unlike counts
RATIOS = [0.125, 0.25, 0.5]  # kept
TIMED = ["knorm", "keydiff", "snapkv", "tova", "expected attention", "lagkv", "chunkkv"]


def press_of(pair: Pair, dropped: float) -> kvpress.BasePress:
    """The press that a pair names, dropping this share. What is evaluated is the text in pairs.py."""
    return eval(pair.theirs, vars(kvpress) | {"dropped": dropped})


@torch.no_grad()
def kept_by_kvpress(peer: Any, press: kvpress.BasePress, tokens: list[int]) -> list[list[list[int]]]:
    """Positions that stay, layer by layer and head by head: the kept keys are found again among all of them."""
    whole, cut = DynamicCache(), DynamicCache()
    peer.model(torch.tensor([tokens]), past_key_values=whole)
    with press(peer):
        peer.model(torch.tensor([tokens]), past_key_values=cut)
    found = []
    for at, (every, left) in enumerate(zip(whole.layers, cut.layers, strict=True)):
        masked = getattr(peer.model.layers[at].self_attn, "masked_key_indices", None)
        if masked is None:
            same = (left.keys[0, :, :, None] == every.keys[0, :, None]).all(-1)
            assert bool((same.sum(-1) == 1).all()), "a kept key is not one of the keys, or is several"
            found.append([sorted(row.long().argmax(-1).tolist()) for row in same])
        else:  # AdaKV drops nothing and masks instead
            gone = torch.zeros(every.keys.shape[1:3], dtype=torch.bool)
            gone[masked[1], masked[2]] = True
            found.append([(~row).nonzero()[:, 0].tolist() for row in gone])
            peer.model.layers[at].self_attn.masked_key_indices = None
    return found


@torch.no_grad()
def kept_by_assay(model: Transformer, expression: str, tokens: list[int], count: int) -> list[list[list[int]]]:
    state = model.start(1)
    held = Compression(build(expression, "policy"), f"{count}tok").attach(state)
    model(torch.tensor([tokens]), state, logits="none")
    held.finish_prefill()
    flats = [store.flat() for store in state.growing().values()]
    heads = range(next(iter(state.growing().values())).kv_heads)
    return [[flat.positions[flat.owner == head].tolist() for head in heads] for flat in flats]


def both(family: str, size: Any, folder: Path) -> tuple[Transformer, Any]:
    write_checkpoint(folder, family, size)
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    # answers are equally long on both sides
    peer.generation_config.eos_token_id = -1
    return assay.load(folder), peer


def kept_table(folder: Path) -> list[dict]:
    """Prints how many kept tokens agree; returns the fixture's cases."""
    print("| policy | model | assay | kept by both | kept by one alone |\n| --- | --- | --- | --- | --- |")
    cases = []
    for family in FAMILIES:
        model, peer = both(family, TINY, folder / family)
        tokens = some_tokens(CONTEXT, TINY.vocabulary, seed=1)
        for pair in PAIRS:
            theirs = kept_by_kvpress(peer, press_of(pair, DROPPED), tokens)
            ours = kept_by_assay(model, pair.ours, tokens, round(CONTEXT * (1 - DROPPED)))
            sets = [(set(a), set(b)) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
            shared, alone = sum(len(a & b) for a, b in sets), sum(len(a ^ b) for a, b in sets)
            print(f"| {pair.name} | {family} | `{pair.ours}` | {shared} | {alone} |", flush=True)
            cases.append(
                {"name": pair.name, "family": family, "policy": pair.ours, "equal": pair.equal, "kept": theirs}
            )
    return cases


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Token n is the word `wn`: their pipeline wants text."""
    words = {f"w{n}": n for n in range(vocabulary) if n not in (1, 2)} | {"<s>": 1, "\n": 2}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def text_of(tokens: list[int]) -> str:
    return " ".join(f"w{n}" for n in tokens)


@torch.inference_mode()
def assay_cells(
    model: Transformer, context: list[int], question: list[int], expressions: list[str]
) -> dict[tuple[str, float], tuple[list[int], int]]:
    """Of each cell the answer and the bytes held once the context is compressed; the context is read once.

    As in kvpress's pipeline nothing is dropped while answering.
    """
    state = model.start(1)
    observers = {text: Compression(build(text, "policy"), 0.5).attach(state) for text in expressions}
    model(torch.tensor([context]), state, logits="none")
    found = {}
    for text, observer in observers.items():
        for ratio in RATIOS:
            branch = state.fork()
            held = observer.fork(branch, f"{int(len(context) * ratio)}tok")
            held.finish_prefill()
            held_bytes, token, answer = branch.bytes, torch.tensor([question]), []
            while len(answer) < ANSWER:
                token = model(token, branch, logits="last")[0][:, -1].argmax(-1, keepdim=True)
                answer.append(int(token))
            found[text, ratio] = answer, held_bytes
    return found


def kvpress_cell(pipe: Any, pair: Pair, ratio: float, context: list[int], question: list[int]) -> tuple[str, int]:
    """The answer, and the bytes of the keys and values that the press has left (the pipeline takes the answer's off again)."""
    cache = DynamicCache()
    answer = pipe(
        " " + text_of(context),
        question=text_of(question) + " ",
        press=press_of(pair, 1 - ratio),
        max_new_tokens=ANSWER,
        cache=cache,
    )["answer"]
    return answer, sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))


def timing_table(folder: Path, rounds: int) -> None:
    pairs = [pair for pair in PAIRS if pair.name in TIMED]
    print("| model | cells | assay, s a cell | kvpress, s a cell | ratio | answers equal |")
    print("| --- | --- | --- | --- | --- | --- |")
    held: dict[tuple[str, float], tuple[int, int]] = {}
    for family in FAMILIES:
        model, peer = both(family, MEDIUM, folder / f"{family}-medium")
        model.tokenizer = None
        pipe = kvpress.KVPressTextGenerationPipeline(model=peer, tokenizer=word_tokenizer(MEDIUM.vocabulary))
        context, question = (some_tokens(n, MEDIUM.vocabulary, seed=n) for n in (LONG - 1, QUESTION))
        seconds: dict[str, list[float]] = {"assay": [], "kvpress": []}
        for _ in range(rounds):
            begun = time.process_time()
            ours = assay_cells(model, [1, *context], [*question, 2], [pair.ours for pair in pairs])
            seconds["assay"].append((time.process_time() - begun) / len(ours))
            begun = time.process_time()
            theirs = {
                (pair.ours, ratio): kvpress_cell(pipe, pair, ratio, context, question)
                for pair in pairs
                for ratio in RATIOS
            }
            seconds["kvpress"].append((time.process_time() - begun) / len(theirs))
        equal = sum(pipe.tokenizer.decode(answer) == theirs[cell][0] for cell, (answer, _) in ours.items())
        a, b = (statistics.median(s) for s in seconds.values())
        print(f"| {family} | {len(ours)} | {a:.3f} | {b:.3f} | {a / b:.2f} | {equal} of {len(ours)} |", flush=True)
        for pair in pairs:
            for ratio in RATIOS:
                cell = pair.ours, ratio
                held[f"{family}, {pair.name}", ratio] = ours[cell][1], theirs[cell][1]
    print("\n| cell | " + " | ".join(f"kept {r:g}" for r in RATIOS) + " |\n| --- |" + " --- |" * len(RATIOS))
    for name in dict.fromkeys(name for name, _ in held):
        row = (" / ".join(f"{n / 2**20:.2f}" for n in held[name, ratio]) for ratio in RATIOS)
        print(f"| {name} | " + " | ".join(row) + " |")


def versions() -> dict[str, str]:
    found = {"kvpress": version("kvpress"), "transformers": transformers.__version__, "torch": torch.__version__}
    return found | {"python": platform.python_version()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--fixture", type=Path, help="write what kvpress keeps here, and time nothing")
    arguments.add_argument("--rounds", type=int, default=1)
    given = arguments.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    print(versions())
    with tempfile.TemporaryDirectory() as folder:
        cases = kept_table(Path(folder))
        if given.fixture:
            rows = ",\n".join(json.dumps(case) for case in cases)
            head = {"versions": versions(), "context": CONTEXT, "kept": round(CONTEXT * (1 - DROPPED))}
            given.fixture.write_text(f'{{"made": {json.dumps(head)}, "cases": [\n{rows}\n]}}\n')
        else:
            timing_table(Path(folder), given.rounds)


if __name__ == "__main__":
    main()
