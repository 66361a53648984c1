"""Time a model: loading, prefill and decoding, in one run, beside transformers with the same weights."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.bench.speed import loading, peers, small
from assay.bench.speed.result import Ratio, Speed
from assay.bench.speed.timing import Memory, middle, seconds, taking_turns, threads
from assay.core import generation
from assay.core.errors import AssayError
from assay.core.linear import compiled, fast_bfloat16
from assay.core.transformer import Transformer

WANTED = {
    ("decode", "float32"): 1.7,
    ("decode", "bfloat16"): 1.5,
    ("prefill", "float32"): 1.15,
    ("prefill", "bfloat16"): 3.0,
}


def run(
    name: str = "gemma-3-270m",
    *,
    storages: tuple[str, ...] = ("float32", "bfloat16"),
    prompt: int = 32,
    tokens: int = 24,
    prefill: int = 2048,
    rounds: int = 5,
    thread_count: int | None = None,
    tiny: bool = False,
    out: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Speed:
    """Measure `name` (anything that loads; with `tiny` a small random model) and write `out` as JSON, if given.

    decode: seconds between greedy tokens after a prompt of `prompt` tokens. prefill: `prefill` tokens to the logits of the last.
    Medians of `rounds` rounds in which both sides take turns. Raises AssayError for a model that cannot be loaded or is too short.
    """
    if tokens < 2 or rounds < 1 or min(prompt, prefill) < 1:
        raise AssayError("speed needs at least 2 tokens, 1 round and a prompt of 1 token")
    if out is not None and out.exists():
        raise AssayError(f"{out} is there already and is not overwritten; name a new file")
    with threads(thread_count) as count, tempfile.TemporaryDirectory(prefix="assay-speed-") as folder:
        bench = _Bench(name, Path(folder), prompt, tokens, prefill, rounds, count, progress)
        result = bench.run(storages, tiny)
    if out is not None:
        out.write_text(result.to_json())
    return result


class _Bench:
    def __init__(
        self, name: str, folder: Path, prompt: int, tokens: int, prefill: int, rounds: int, count: int, say
    ) -> None:
        self.name, self.folder, self.say = name, folder, say
        self.prompt, self.tokens, self.prefill, self.rounds, self.threads = prompt, tokens, prefill, rounds, count
        self.ratios: list[Ratio] = []
        self.bandwidth: list[dict[str, Any]] = []
        self.agreement: dict[str, float] = {}
        self.notes: list[str] = []
        self.memory = Memory()

    def run(self, storages: tuple[str, ...], tiny: bool) -> Speed:
        self.say("loading")
        times, load, note = loading.timed("small" if tiny else self.name, self.folder, small.source if tiny else None)
        self.notes += [note] if note else []
        if why := peers.missing("transformers"):
            self.notes.append(f"{why}: no ratios")
        for storage in storages:
            self._one(load(storage), storage)
        self._llama_cpp()
        machine = {
            "cpu": _cpu(),
            "kernels": torch.backends.cpu.get_cpu_capability(),
            "bfloat16 in hardware": fast_bfloat16(),
            "one-row kernels": "torch" if compiled() is None else "numba",
            "torch": torch.__version__,
        }
        settings = {
            "prompt": self.prompt,
            "tokens": self.tokens,
            "prefill": self.prefill,
            "rounds": self.rounds,
            "threads": self.threads,
        }
        name = "small" if tiny else self.name
        return Speed(name, machine, settings, self.ratios, self.bandwidth, times, self.agreement, self.notes)

    def _one(self, model: Transformer, storage: str) -> None:
        """Decode and prefill of one storage, both sides taking turns."""
        longest = max(self.prefill, self.prompt + self.tokens)
        if longest > model.config.context:
            raise AssayError(
                f"{self.name} reads {model.config.context} tokens; {longest} are asked for: lower prefill or tokens"
            )
        peer = self._peer(model, storage)
        draw = torch.Generator().manual_seed(0)
        short, long = (
            torch.randint(model.config.vocab_size, (1, n), generator=draw) for n in (self.prompt, self.prefill)
        )
        self._decode(model, peer, storage, short)
        self._prefill(model, peer, storage, long)

    def _peer(self, model: Transformer, storage: str) -> Any:
        if peers.missing("transformers"):
            return None
        try:
            return peers.same_in_transformers(model, self.folder / "transformers", model.embed.weight.dtype)
        except AssayError as error:
            self.notes.append(f"{storage}: no transformers twin: {error}")
            return None

    def _decode(self, model: Transformer, peer: Any, storage: str, prompt: Int[Tensor, "1 tokens"]) -> None:
        self.say(f"decode, {storage}")
        sides = {"assay": lambda: steps(model, prompt, self.tokens), "memory": lambda: [self.memory.read()]}
        if peer is not None:
            sides["transformers"] = lambda: peers.transformers_steps(peer, prompt, self.tokens)
        found = {side: middle(samples) for side, samples in taking_turns(sides, self.rounds).items()}
        machine = found.pop("memory")["median"]
        self._add("decode", storage, 1, found)
        size = weights_read(model)
        rate = size / found["assay"]["median"]
        self.bandwidth.append(
            {"storage": storage, "bytes": size, "read": rate, "machine": machine, "share": rate / machine}
        )

    def _prefill(self, model: Transformer, peer: Any, storage: str, prompt: Int[Tensor, "1 tokens"]) -> None:
        self.say(f"prefill, {storage}")
        last: dict[str, Tensor] = {}

        def ours() -> None:
            with torch.no_grad():
                last["assay"] = model(prompt, model.start(1), logits="last")[0]

        def theirs() -> None:
            last["transformers"] = peers.transformers_prefill(peer, prompt)

        sides = {"assay": lambda: [seconds(ours)]}
        if peer is not None:
            sides["transformers"] = lambda: [seconds(theirs)]
        found = {side: middle(samples) for side, samples in taking_turns(sides, self.rounds).items()}
        self._add("prefill", storage, prompt.shape[1], found)
        if peer is not None:
            self.agreement[storage] = float((last["assay"].float() - last["transformers"].float()).abs().max())

    def _add(self, what: str, storage: str, tokens: int, found: dict[str, dict[str, float]]) -> None:
        rate = {side: tokens / taken["median"] for side, taken in found.items()}
        theirs = rate.get("transformers")
        ratio = None if theirs is None else rate["assay"] / theirs
        wanted = WANTED.get((what, storage))
        self.ratios.append(Ratio(what, storage, rate["assay"], theirs, ratio, wanted, seconds=found))

    def _llama_cpp(self) -> None:
        """Printed where it is installed; no goal hangs on it, since it reads fewer bits."""
        if peers.missing("llama_cpp") or peers.gguf_of(self.name, self.folder) is None:
            return
        self.say("llama.cpp")
        ids = list(range(10, 10 + self.prompt))
        taken = middle(peers.llama_cpp_steps(self.name, self.folder, ids, self.tokens, self.threads))
        for ours in [r for r in self.ratios if r.what == "decode"]:
            theirs = 1 / taken["median"]
            both = {"assay": ours.seconds["assay"], "llama.cpp": taken}
            self.ratios.append(
                Ratio("decode", ours.storage, ours.ours, theirs, ours.ours / theirs, None, "llama.cpp", both)
            )


def steps(model: Transformer, prompt: Int[Tensor, "1 tokens"], tokens: int) -> list[float]:
    """Seconds between greedy tokens, prefill left out."""
    times = []
    for token in islice(generation.steps(model, prompt.tolist(), generation.Options(max_tokens=tokens)), tokens):
        token.tolist()
        times.append(perf_counter())
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def weights_read(model: Transformer) -> int:
    """Bytes of parameters that one decoding step reads: all but the tables of which it reads a row."""
    tables = [model.positions] + ([] if model.config.tied else [model.embed])
    rows = {id(table.weight) for table in tables if table is not None}
    return sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in rows)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
