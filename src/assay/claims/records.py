"""Records of runs: where they lie, where they come from, and what they say at a glance. Imports no torch."""

import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from assay.claims.verdicts import VERDICTS
from assay.core.errors import AssayError
from assay.core.registry import Card
from assay.report.files import write_atomically

_LIBRARIES = ("assay", "torch", "transformers", "tokenizers", "numpy", "scipy")
_DECIDES = ("src", "pyproject.toml", "constraints.txt")


def root() -> Path:
    """The repository that this package lies in, or the present folder where it is installed."""
    here = Path(__file__).resolve().parents[3]
    return here if (here / "atlas").is_dir() or (here / "pyproject.toml").is_file() else Path.cwd()


def folder() -> Path:
    return root() / "atlas" / "results"


def read(card: Card, where: Path | None = None) -> dict[str, Any] | None:
    """The record of a claim, or None where it was never run. Raises AssayError for a file that is no record."""
    path = (where or folder()) / f"{card.row}.json"
    return _parsed(path) if path.is_file() else None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not {"row", "exact", "expect", "date"} <= record.keys():
            raise ValueError("it lacks row, exact, expect or date")
    except (ValueError, UnicodeDecodeError) as error:
        raise AssayError(f"{path} is no record ({error}); run `assay claim {path.stem}` again") from error
    return record


def write(record: dict[str, Any], where: Path | None = None) -> tuple[Path, list[str]]:
    """Write a record whole, and say what a reader should know about it.

    A record from a dirty tree never replaces one from a clean tree: it goes to `<row>.dirty.json` beside it. Wanted
    values that differ from the replaced record's are listed in the new one under `revised`.
    """
    where = where or folder()
    path, notes = where / f"{record['row']}.json", []
    try:
        before = _parsed(path) if path.is_file() else None
    except AssayError as error:
        before = None  # a long run is not thrown away because of the file it replaces
        notes.append(f"replaced: {error}")
    if before:
        record = record | {"revised": _revised(before, record)}
        notes += [f"revised since the last record: {one['says']!r} was {one['was']!r}" for one in record["revised"]]
    if record["dirty"]:
        notes.append("the tree is dirty: the record does not say which code it belongs to; commit and run again")
        if before and not before.get("dirty"):
            notes.append(f"{path.name} comes from a clean tree and stays")
            path = path.with_suffix(".dirty.json")
    write_atomically(path, json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path, notes


def _revised(before: dict[str, Any], record: dict[str, Any]) -> list[dict[str, Any]]:
    now = {entry["says"]: entry["wanted"] for entry in record["expect"]}
    was = {entry["says"]: entry["wanted"] for entry in before["expect"]}
    changed = [{"says": says, "was": was[says], "now": now.get(says)} for says in was if now.get(says) != was[says]]
    return [*before.get("revised", []), *(one for one in changed if one not in before.get("revised", []))]


def provenance(claim_file: str | Path) -> dict[str, Any]:
    """Where a run comes from: commit, whether the code differs from it, the commit that last changed the claim."""
    changed = _git("status", "--porcelain", "--", *_DECIDES)
    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": changed is None or bool(changed),
        "declared": _git("log", "-1", "--format=%H", "--", str(claim_file)) or None,
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _LIBRARIES},
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root(), capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list) else value


def verdict(record: dict[str, Any] | None) -> str:
    """A record at a glance: `holds`, `exact fails`, or how many expectations ended how."""
    if record is None:
        return "not run"
    if any(entry.get("holds") is not True for entry in record["exact"]):
        return "exact fails"
    counts = Counter(entry.get("verdict") for entry in record["expect"])
    ended = [f"{counts[name]} {name}" for name in VERDICTS if counts[name]]
    if not ended:
        return "exact holds"
    return next(iter(counts)) if len(counts) == 1 else ", ".join(ended)


def age(record: dict[str, Any] | None, now: datetime.datetime | None = None) -> str:
    """How long ago a record was made, in its largest unit."""
    if record is None:
        return "-"
    made = datetime.datetime.fromisoformat(record["date"])
    seconds = max(0, int(((now or datetime.datetime.now(datetime.UTC)) - made).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return "now"
