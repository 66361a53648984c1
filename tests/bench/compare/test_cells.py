"""The cell store: nothing finished is ever lost, nothing of another run is ever mixed in."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from assay.bench.compare import cells, open_run
from assay.bench.compare.cells import CellStore, fingerprint
from assay.core.errors import AssayError

FIXED = {"model": "tiny", "length": 64, "seed": 0}


def cell(number: int) -> dict:
    return {"cell": fingerprint({"seed": number}), "seed": number, "score": 0.5}


def test_a_fingerprint_depends_on_every_deciding_value_and_not_on_their_order():
    one = fingerprint({"model": "m", "seed": 1})
    assert one == fingerprint({"seed": 1, "model": "m"})
    assert len({one, fingerprint({"model": "m", "seed": 2}), fingerprint({"model": "n", "seed": 1})}) == 3


def test_finished_cells_are_found_again(tmp_path):
    with CellStore(tmp_path / "run", FIXED) as store:
        store.write(cell(1))
    with CellStore(tmp_path / "run", FIXED) as store:
        assert cell(1)["cell"] in store and cell(2)["cell"] not in store
        store.write(cell(2))
    run, found = cells.read(tmp_path / "run")
    assert [c["seed"] for c in found] == [1, 2] and run["fixed"]["model"] == "tiny"


@pytest.mark.parametrize("torn", [b'{"cell":"ab', b'{"cell":"ab"}', b"\x00\x00\x00\n"])
def test_a_torn_last_line_is_dropped_and_the_next_cell_is_whole(tmp_path, torn):
    with CellStore(tmp_path, FIXED) as store:
        store.write(cell(1))
    with open(tmp_path / cells.CELLS, "ab") as file:
        file.write(torn)
    assert len(cells.read(tmp_path)[1]) == 1
    with CellStore(tmp_path, FIXED) as store:
        assert len(store) == 1
        store.write(cell(2))
    assert [c["seed"] for c in cells.read(tmp_path)[1]] == [1, 2]


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    with CellStore(tmp_path, FIXED) as store:
        store.write(cell(1))
        store.write(cell(2))
    lines = (tmp_path / cells.CELLS).read_text().splitlines()
    (tmp_path / cells.CELLS).write_text("\n".join(["garbage", lines[1], ""]))
    with pytest.raises(AssayError, match="line 1"):
        CellStore(tmp_path, FIXED).__enter__()


def test_a_different_run_is_refused_and_the_difference_named(tmp_path):
    with CellStore(tmp_path, FIXED) as store:
        store.write(cell(1))
    before = (tmp_path / cells.CELLS).read_bytes(), (tmp_path / cells.RUN).read_bytes()
    with pytest.raises(AssayError, match="length 64 there, 128 now"):
        CellStore(tmp_path, {**FIXED, "length": 128}).__enter__()
    assert before == ((tmp_path / cells.CELLS).read_bytes(), (tmp_path / cells.RUN).read_bytes())


def test_a_folder_of_other_files_is_refused_untouched(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(AssayError, match="not a run"):
        CellStore(tmp_path, FIXED).__enter__()
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_two_writers_at_once_are_refused(tmp_path):
    with CellStore(tmp_path, FIXED), pytest.raises(AssayError, match="another process"):
        CellStore(tmp_path, FIXED).__enter__()


def test_a_full_disk_is_one_line_and_keeps_what_was_finished(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with CellStore(tmp_path, FIXED) as store:
        store.write(cell(1))
        monkeypatch.setattr(cells.os, "fsync", full)
        with pytest.raises(AssayError, match="disk is full.*1 finished cells are kept"):
            store.write(cell(2))
    monkeypatch.undo()
    with CellStore(tmp_path, FIXED) as store:
        assert len(store) == 1
        store.write(cell(2))
    assert len(cells.read(tmp_path)[1]) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_really_full_device_is_one_line(tmp_path):
    with CellStore(tmp_path, FIXED) as store:
        store._file.close()
        store._file = open("/dev/full", "r+b")
        with pytest.raises(AssayError, match="disk is full"):
            store.write(cell(1))


def test_numbers_that_are_not_finite_become_null(tmp_path):
    with CellStore(tmp_path, FIXED) as store:
        store.write({**cell(1), "kl": float("nan"), "logprob": float("-inf")})
    line = (tmp_path / cells.CELLS).read_text()
    assert "NaN" not in line and json.loads(line)["logprob"] is None


def test_kill_9_loses_no_finished_cell(tmp_path):
    script = (
        "import sys\nfrom assay.bench.compare.cells import CellStore, fingerprint\n"
        "with CellStore(sys.argv[1], {'model': 'tiny'}) as store:\n"
        "    for n in range(10**6):\n"
        "        store.write({'cell': fingerprint({'n': n}), 'n': n, 'text': 'x' * 5000})\n"
        "        print(n, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE)
    try:
        for _ in range(20):
            last = int(writer.stdout.readline())
        time.sleep(0.01)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    said = [last, *(int(line) for line in writer.stdout.read().split(b"\n")[:-1] if line)]
    with CellStore(tmp_path / "run", {"model": "tiny"}) as store:
        assert sorted(c["n"] for c in store.cells.values())[: said[-1] + 1] == list(range(said[-1] + 1))


def test_a_run_that_could_not_begin_leaves_nothing_and_may_be_tried_again(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(cells, "write_atomically", full)
        with pytest.raises(AssayError, match="the disk is full"), CellStore(folder, {"seed": 0}):
            pass
    assert not folder.exists()
    with CellStore(folder, {"seed": 0}):
        pass


@pytest.mark.parametrize(
    ("run", "line", "why"),
    [
        ("[]", "", "run.json is damaged"),
        ("{}", "", "run.json is damaged"),
        ('{"fixed": {}}', '{"cell": "a"}\n', "cell a lacks task"),
    ],
)
def test_a_damaged_run_is_named(tmp_path, run, line, why):
    (tmp_path / "run.json").write_text(run)
    (tmp_path / "cells.jsonl").write_text(line)
    with pytest.raises(AssayError, match=why):
        open_run(tmp_path)
