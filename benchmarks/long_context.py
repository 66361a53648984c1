"""What a prefill takes at several lengths of context: state bytes, memory of the process, seconds; whole and in pieces.

    python benchmarks/long_context.py --model gemma-3-270m --lengths 4096,16384,32768 --arms 'full' 'full/1024' 'snapkv@2048tok/1024'

An arm is a cache expression, and after a slash the pieces' length (none: whole). Every measurement runs in a process of its own, so that
the peak of its resident memory is its own. The context is token ids drawn at random: what is measured does not depend on what is said.

`state`: the most that the state's tensors held at once, looked at whenever a layer that grows without end has taken tokens in.
`bound`: what such layers hold of ceiling + piece tokens, as reckoned before the run, and the others of their windows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

import assay
from assay.core.format import GroupedFormat
from assay.core.generation import Options, begin, compression
from assay.core.prefill import prefill
from assay.core.sizes import bytes_holding
from assay.core.state import AttentionState, ModelState

SEED = 0


def memory(kind: str) -> int:
    """Bytes of this process in memory: now (`VmRSS`), or at most since the last `forget_peak` (`VmHWM`). Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def forget_peak() -> None:
    ctypes.CDLL(None).malloc_trim(0)  # what loading has freed goes back, or what comes would hide in it
    Path("/proc/self/clear_refs").write_text("5")


@torch.no_grad()
def measure(name: str, cache: str, chunk: int | None, length: int) -> dict:
    model = assay.load(name)
    tokens = torch.randint(0, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(SEED))
    model(tokens[:, :8])  # whatever is set up once is set up
    forget_peak()
    loaded, peak = memory("VmRSS"), 0
    state, held = begin(model, 1, Options(cache=cache)), compression(cache)

    def watch(store, seen) -> None:
        nonlocal peak
        peak = max(peak, state.bytes)

    if held is not None:
        held.attach(state)
    for layer in state.growing():
        state.layers[layer].observers += (watch,)
    began = time.perf_counter()
    prefill(model, tokens, state, chunk=chunk, held=held, logits="last")
    seconds = time.perf_counter() - began
    # what is held at any time under a policy: its ceiling, and the piece that has just come
    most = length if held is None else min(length, held.ceiling[0] + (chunk or length))
    return {
        "cache": cache, "chunk": chunk, "length": length, "seconds": round(seconds, 1), "state": peak,
        "bound": bound(state, most, chunk or length), "after": state.bytes, "loaded": loaded, "process": memory("VmHWM"),
    }  # fmt: skip


def bound(state: ModelState, tokens: int, piece: int) -> int | None:
    """Bytes of a state whose growing layers hold so many tokens, and the others what their windows let stay.

    None of a format in groups of tokens: how many groups are still named depends on which tokens a policy drops.
    """
    total = 0
    if any(isinstance(layer.store.format, GroupedFormat) for layer in state.layers):
        return None
    for layer in state.layers:
        store = layer.store
        held = tokens if layer.window is None else min(tokens + piece, layer.window + 2 * AttentionState.SLACK)
        total += int(bytes_holding(store, torch.tensor([held] * store.kv_heads)))
    return total


def table(rows: list[dict]) -> str:
    mib = 2**20
    lines = [
        "| cache | piece | context | state, peak | bound | state after | process above the loaded model | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        limit = "–" if r["bound"] is None else f"{r['bound'] / mib:.1f} MiB"
        lines.append(
            f"| `{r['cache']}` | {r['chunk'] or 'whole'} | {r['length']:,} | {r['state'] / mib:.1f} MiB | {limit} "
            f"| {r['after'] / mib:.1f} MiB | {(r['process'] - r['loaded']) / mib:.0f} MiB | {r['seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma-3-270m")
    parser.add_argument("--lengths", default="4096,16384,32768")
    parser.add_argument("--arms", nargs="+", default=["full", "full/1024", "snapkv@2048tok/1024"])
    parser.add_argument("--out", help="append one JSON line a measurement to this file")
    parser.add_argument("--one", nargs=3, metavar=("CACHE", "CHUNK", "LENGTH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        cache, chunk, length = given.one
        print(json.dumps(measure(given.model, cache, int(chunk) or None, int(length))))
        return
    rows = []
    for arm in given.arms:
        cache, _, chunk = arm.partition("/")
        compression(cache)  # a slip is found before an hour has gone
        for length in given.lengths.split(","):
            command = [sys.executable, __file__, "--model", given.model, "--one", cache, chunk or "0", length]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(table(rows[-1:]).split("\n")[-1], flush=True)
            if given.out:
                with open(given.out, "a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
