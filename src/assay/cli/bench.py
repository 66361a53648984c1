"""`assay bench`: how fast a model runs here, beside transformers and the machine's memory."""

from pathlib import Path

import typer


def bench(
    model: str = typer.Argument("gemma-3-270m", help="A name from `assay models`, a folder, a GGUF file, or a hub id."),
    storages: str = typer.Option("float32,bfloat16", help="How matrices are stored, by comma."),
    prompt: int = typer.Option(32, help="Tokens of the prompt before decoding."),
    tokens: int = typer.Option(24, help="Tokens that are decoded."),
    prefill: int = typer.Option(2048, help="Tokens that are read at once."),
    rounds: int = typer.Option(5, help="Rounds in which both sides take turns."),
    threads: int = typer.Option(None, help="Threads; by default torch's own choice."),
    small: bool = typer.Option(
        False, "--small", help="A tiny random model, to see that all runs; its numbers mean nothing."
    ),
    out: Path = typer.Option(None, help="Write the numbers as JSON to this file."),
) -> None:
    """Measure loading, prefill and decoding, as ratios to transformers on the same weights and to the memory's speed."""
    from rich.console import Console

    from assay.bench import speed
    from assay.bench.compare.settings import split

    console = Console(stderr=True)
    with console.status("measuring") as status:
        found = speed.run(
            model,
            storages=tuple(split(storages)),
            prompt=prompt,
            tokens=tokens,
            prefill=prefill,
            rounds=rounds,
            thread_count=threads,
            tiny=small,
            out=out,
            progress=status.update,
        )
    found.print()
