"""`assay compare` runs a grid of cache policies on a model; `assay report` makes its page again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.bench.compare import Result


def compare(
    model: str = typer.Argument(help="A name from `assay models`, a folder, a GGUF file, or a hub id."),
    policies: list[str] = typer.Argument(None, help="Cache policies: snapkv 'twinkv(snapkv)' ./mine.py:MyPolicy"),
    tasks: str = typer.Option(None, help="By comma: needle,multikey,ppl,text:FILE,jsonl:FILE"),
    budgets: str = typer.Option(None, help="By comma: 0.25 (of the tokens), 512tok, 4MiB"),
    length: str = typer.Option(None, help="Tokens of a context; several by comma: 512,1024,2048"),
    examples: int = typer.Option(None, help="Examples a task and length."),
    seed: int = typer.Option(None, help="Seed of the examples and of random choices; by default 0."),
    out: Path = typer.Option(None, help="Folder of the run; the same command resumes it."),
    aware: bool = typer.Option(False, "--aware", help="Compress with the question in sight, not before it is seen."),
    chunk: int = typer.Option(
        None, help="Tokens read at once, dropping some in between; by default the whole context."
    ),
    match: str = typer.Option(
        None, help="What budgets are shares of: tokens, or bytes (of the full cache, metadata included)"
    ),
    generate: bool = typer.Option(False, "--generate", help="Score what greedy decoding writes, not a forced answer."),
    on: str = typer.Option(None, help="Where: ray (this machine's cores) or ray:ADDRESS (a cluster)"),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print every cell and the time it may take; run nothing."),
    device: str = typer.Option(None, help="cpu, cuda or mps"),
    dtype: str = typer.Option(None, help="float32, bfloat16 or float16"),
    max_loss: str = typer.Option(None, help="Largest loss of a recommended policy on any task; by default 1%."),
    max_bytes: str = typer.Option(None, help="Largest share of the full cache's bytes that it may hold, such as 50%."),
) -> None:
    """Measure what cache policies buy and cost on a model: quality with intervals, bytes really held, speed."""
    settings = {
        "tasks": tasks,
        "budgets": budgets,
        "length": length,
        "examples": examples,
        "seed": seed,
        "aware": aware,
        "chunk": chunk,
        "match": match,
        "generate": generate,
        "device": device,
        "dtype": dtype,
        "max_loss": _share("--max-loss", max_loss),
        "max_bytes": _share("--max-bytes", max_bytes),
    }
    from assay.bench.compare import compare as run_grid

    parts = {"parts": policies} if policies else {}
    result = run_grid(model, out=out, on=on, dry_run=dry_run, **parts, **settings)
    if not dry_run:
        _show(result)


def report(
    run: Path = typer.Argument(help="The folder of a run."),
    against: Path = typer.Option(None, help="The folder of another run: what changed since, cell by cell."),
) -> None:
    """Make the tables, the page and the CSV file of a run again, from its finished cells; or say what changed against another."""
    if against is None:
        from assay.bench.compare import open_run

        _show(open_run(run))
        return
    from assay.bench.compare.against import against as compare_with

    compare_with(run, against)
    print(f"page: {run / 'against.html'}")


def _show(result: Result) -> None:
    result.print()
    print(f"report: {result.page}")


def _share(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise AssayError(f"{option} {text!r}: write a share such as 1% or 0.01") from None
