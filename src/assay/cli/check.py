"""`assay check`: hold a part of your own to its seam's contract."""

import os
import subprocess
import sys
from pathlib import Path

import typer

CONTRACTS = {
    "Mixer": (
        "mixer",
        "test_mixers.py",
        "test_mixer_gradients.py",
        "test_mixer_accounts.py",
        "test_stored.py",
        "test_bidirectional.py",
    ),
    "Position": ("position", "test_positions.py"),
    "Channel": ("channel", "test_channels.py"),
    "Schedule": ("depth", "test_depth.py"),
    "Policy": ("policy", "test_policies.py", "test_chunked_prefill.py", "test_matched_bytes.py"),
    "Reader": ("reader", "test_readers.py"),
    "Format": ("format", "test_formats.py", "test_held.py"),
    "Task": ("task", "test_tasks.py"),
}


def check(
    part: str = typer.Argument(help="A part of your own, as ./mine.py:MyMixer, or a registered name."),
    quick: bool = typer.Option(False, "--quick", help="Stop at the first law that does not hold."),
) -> None:
    """Run the contract of a part's seam on it; exit code 1 if a law does not hold."""
    import assay
    from assay.core import registry
    from assay.core.errors import AssayError

    card = registry.find(part)
    made = registry.load(card)
    seams = [CONTRACTS[base.__name__] for base in getattr(made, "__mro__", ()) if base.__name__ in CONTRACTS]
    if not seams:
        raise AssayError(f"{part} derives from no interface with a contract; there are {', '.join(CONTRACTS)} (docs/design.md)")
    seam, *files = seams[0]
    folder = Path(assay.__file__).resolve().parents[2] / "tests" / "contracts"
    if not folder.is_dir():
        raise AssayError("the contracts are in the source tree: clone it, `pip install -e .`, and check from there")
    name = str(Path(part.partition(".py")[0] + ".py").resolve()) + part.partition(".py")[2] if ".py" in part else part
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(["-x"] if quick else []),
        *(str(folder / file) for file in files),
    ]
    print(f"{part}: the contract of {seam}s")
    done = subprocess.run(command, cwd=folder.parents[1], env={**os.environ, "ASSAY_CHECK": f"{seam}={name}"})
    if done.returncode == 1:
        raise typer.Exit(1)
    if done.returncode:
        raise AssayError(
            f"the contract could not be run (pytest ended with {done.returncode}): pip install 'assay[dev]'"
        )
