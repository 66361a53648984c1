"""`assay lm-eval`: tasks of EleutherAI's harness, on any model, under a cache policy."""

from pathlib import Path

import typer


def lm_eval(
    model: str = typer.Argument(help="A name from `assay models`, a folder, a GGUF file, or a hub id."),
    tasks: str = typer.Option(help="By comma: tasks of lm-eval, or your own in --include."),
    cache: str = typer.Option("full", help="A cache policy with its budget, such as snapkv@0.25, or full."),
    limit: int = typer.Option(None, help="Examples a task; by default all."),
    shots: int = typer.Option(None, help="Worked examples before each; by default what the task says."),
    include: Path = typer.Option(None, help="Folder of YAML files with tasks of your own."),
    seed: int = typer.Option(0, help="Seed of the harness's random choices."),
    out: Path = typer.Option(None, help="Write the harness's results as JSON to this file, which must not exist."),
    device: str = typer.Option("cpu", help="cpu, cuda or mps"),
    dtype: str = typer.Option("float32", help="float32, bfloat16 or float16"),
) -> None:
    """Run lm-eval's tasks on a model whose cache is held to a budget; needs the extra `lm-eval`."""
    from assay.bench.harness import evaluate
    from assay.core.errors import AssayError

    if out is not None and out.exists():
        raise AssayError(f"{out} exists: choose another --out")
    found = evaluate(
        model, tasks, cache=cache, limit=limit, shots=shots, include=include, seed=seed, device=device, dtype=dtype
    )
    print(found.table())
    if out is not None:
        import json

        out.write_text(json.dumps({**found.results, "cache": cache}, indent=1, default=str) + "\n", encoding="utf-8")
        print(f"results: {out}")
