"""A run opened again says what it said, and measures nothing."""

import json

import pytest

from assay.bench.compare import compare, open_run
from assay.core.errors import AssayError


def test_a_run_opened_again_says_the_same(tiny, tmp_path):
    first = compare(
        tiny, ["knorm"], out=tmp_path, tasks="needle", budgets="0.5", length=400, examples=1, max_loss=0.3, quiet=True
    )
    cells = (tmp_path / "cells.jsonl").read_bytes()
    for name in ("report.html", "cells.csv", "picture.svg"):
        (tmp_path / name).unlink()
    again = open_run(tmp_path)
    assert again.summary.tasks == first.summary.tasks
    assert again.summary.recommendation == first.summary.recommendation
    assert (again.summary.planned, again.summary.finished) == (first.summary.planned, first.summary.finished)
    assert again.page.is_file() and (tmp_path / "cells.csv").is_file() and (tmp_path / "picture.svg").is_file()
    assert (tmp_path / "cells.jsonl").read_bytes() == cells


def test_an_unfinished_run_still_says_how_much_is_missing(tiny, tmp_path):
    compare(tiny, ["knorm"], out=tmp_path, tasks="needle", budgets="0.5", length=400, examples=1, quiet=True)
    lines = (tmp_path / "cells.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cells.jsonl").write_text("".join(lines[:-1]))
    summary = open_run(tmp_path).summary
    assert (summary.planned, summary.finished) == (3, 2)
    assert json.loads((tmp_path / "run.json").read_text())["planned"] == 3


def test_a_folder_without_cells_is_refused(tmp_path):
    with pytest.raises(AssayError, match="holds no run"):
        open_run(tmp_path)
