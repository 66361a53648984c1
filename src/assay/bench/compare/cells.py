"""Finished cells on disk: one JSON line each, safe against Ctrl-C, kill -9, a full disk and a changed setting.

A run's folder holds `run.json` (what was asked, versions, machines) and `cells.jsonl`. A cell's name is the SHA-256 of
everything that decides its number, so a cell is found again only by the run that would compute the same one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from assay.core.errors import AssayError
from assay.report.files import write_atomically

SCHEMA = 2
RUN, CELLS = "run.json", "cells.jsonl"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal things give equal text."""
    return _ENCODER.encode(value)


def fingerprint(deciding: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of everything that decides a number."""
    return hashlib.sha256(canonical({"schema": SCHEMA, **deciding}).encode()).hexdigest()


class CellStore:
    """The cells of one folder. A context manager: one process at a time may write to a folder.

    `fixed`: what decides every number of the run (model, length, seed…); a folder made with other values is refused.
    `record`: what is only kept for the reader (grid, versions, machine); rewritten each time.
    Raises AssayError for a folder of another run or of other files, a damaged line, and a full disk.
    """

    def __init__(self, folder: str | Path, fixed: Mapping[str, Any], record: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self.fixed = json.loads(canonical({"schema": SCHEMA, **fixed}))
        self.record = dict(record or {})
        self.cells: dict[str, dict[str, Any]] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> CellStore:
        earlier = self._earlier()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.folder / CELLS, "a+b")  # noqa: SIM115 (closed in __exit__)
            _lock(self._file, self.folder)
            self._load(self._file)
            self._write_run(earlier)
        except (OSError, AssayError) as error:
            self.__exit__()
            self._leave_nothing(earlier)
            raise (_disk(error, self.folder) if isinstance(error, OSError) else error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __contains__(self, cell: str) -> bool:
        """Whether the cell is finished; one that was skipped for a reason is tried again."""
        return cell in self.cells and not self.cells[cell].get("skipped")

    def __len__(self) -> int:
        return len(self.cells)

    def write(self, cell: Mapping[str, Any]) -> None:
        """Append one finished cell; when this returns it is on the disk. NaN and infinities become null."""
        if self._file is None:
            raise AssayError(f"{self.folder}: the cell store is not open; use it in a `with` statement")
        clean = _finite(dict(cell))
        line = (canonical(clean) + "\n").encode()
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._abandon(end)
            raise _disk(error, self.folder, len(self.cells)) from None
        self.cells[clean["cell"]] = clean

    def saw(self, machine: Mapping[str, Any]) -> None:
        """Note in run.json a machine that measures for this run, if it is a new one."""
        if machine not in self.run["machines"]:
            self.run["machines"].append(dict(machine))
            self._save_run()

    def _abandon(self, end: int) -> None:
        """Close without flushing what could not be written, and cut the half-written line off."""
        assert self._file is not None
        raw, self._file = self._file, None
        try:
            raw.close()
        except OSError:
            pass
        try:
            os.truncate(self.folder / CELLS, end)
        except OSError:
            pass  # the next start drops a torn line anyway

    def _leave_nothing(self, earlier: dict[str, Any] | None) -> None:
        """A run that could not begin must not stand in the way of the next try."""
        cells = self.folder / CELLS
        if earlier is None and not (self.folder / RUN).exists() and cells.is_file() and not cells.stat().st_size:
            cells.unlink()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _earlier(self) -> dict[str, Any] | None:
        """What an earlier start recorded here, after checking that it was the same run."""
        path = self.folder / RUN
        if self.folder.exists() and not self.folder.is_dir():
            raise AssayError(f"{self.folder} is a file: --out names a folder")
        if not path.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise AssayError(f"{self.folder} holds files that are not a run of assay: choose another --out")
            return None
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            there = dict(earlier["fixed"])
        except (ValueError, KeyError, TypeError):
            raise AssayError(f"{path} is damaged: choose another --out, or mend it by hand") from None
        differing = [k for k in sorted(there.keys() | self.fixed.keys()) if there.get(k) != self.fixed.get(k)]
        if differing:
            said = "; ".join(f"{k} {_short(there.get(k))} there, {_short(self.fixed.get(k))} now" for k in differing)
            raise AssayError(f"{self.folder} holds a different run ({said}): choose another --out")
        return earlier

    def _write_run(self, earlier: dict[str, Any] | None) -> None:
        machine = self.record.pop("machine", None)
        machines = list((earlier or {}).get("machines", []))
        if machine is not None and machine not in machines:
            machines.append(machine)
        run = {**self.record, "fixed": self.fixed, "machines": machines}
        run["created"] = (earlier or {}).get("created", self.record.get("created"))
        self.run = run
        self._save_run()

    def _save_run(self) -> None:
        write_atomically(self.folder / RUN, json.dumps(self.run, indent=1, sort_keys=True) + "\n")

    def _load(self, file: BinaryIO) -> None:
        self.cells, whole = _parse(file, self.folder / CELLS)
        if whole < os.fstat(file.fileno()).st_size:
            file.truncate(whole)  # a line torn by a kill or a crash: its cell is computed again


def read(folder: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`run.json` and all finished cells of a folder, without opening it for writing."""
    folder = Path(folder)
    try:
        run = json.loads((folder / RUN).read_text(encoding="utf-8"))
        with open(folder / CELLS, "rb") as file:
            cells, _ = _parse(file, folder / CELLS)
    except FileNotFoundError as error:
        raise AssayError(f"{folder} holds no run: {Path(error.filename).name} is missing") from None
    except ValueError:
        raise AssayError(f"{folder / RUN} is damaged") from None
    if not isinstance(run, dict) or not isinstance(run.get("fixed"), dict):
        raise AssayError(f"{folder / RUN} is damaged: it does not say what was asked")
    return run, list(cells.values())


def _parse(file: BinaryIO, path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Cells by name, and how many bytes of the file are whole lines."""
    file.seek(0)
    cells: dict[str, dict[str, Any]] = {}
    whole = 0
    lines = file.read().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn
        try:
            cell = json.loads(line)
            cells[cell["cell"]] = cell
        except (ValueError, KeyError, TypeError):
            if number == len(lines) - 1 and not lines[-1]:
                break  # blocks of the last line that never reached the disk
            raise AssayError(f"{path}, line {number}: not a cell; the file was changed or damaged") from None
        whole += len(line) + 1
    return cells, whole


def _lock(file: BinaryIO, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: two writers at once are not noticed
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AssayError(f"another process is writing to {folder}: wait for it, or choose another --out") from None


def _disk(error: OSError, folder: Path, cells: int | None = None) -> AssayError:
    kept = "" if cells is None else f"; the {cells} finished cells are kept, free some space and run again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return AssayError(f"the disk is full: could not write to {folder}{kept}")
    return AssayError(f"could not write to {folder}: {error.strerror or error}{kept}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"
