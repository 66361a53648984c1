"""Two runs side by side: what changed is found, what did not is not invented, and what cannot be compared is said."""

import random

import pytest
from rich.console import Console
from tests.bench.compare.test_summarise import RUN, cells

from assay.bench.compare import compare
from assay.bench.compare.against import against, compare_runs
from assay.core.errors import AssayError
from assay.report.changes import print_changes, write_changes


def runs(mine, theirs, other=None):
    there = {**RUN, "fixed": {**RUN["fixed"], **(other or {})}}
    return compare_runs("new", RUN, cells(mine), "old", there, cells(theirs))


def test_a_planted_change_is_found_where_it_is_and_only_there():
    full = [1.0] * 40
    found = runs({"full": full, "p": [0.0] * 12 + [1.0] * 28}, {"full": full, "p": full})
    verdicts = {r.policy: (r.difference.verdict, r.flips) for r in found.rows}
    assert verdicts == {"full": ("not distinguishable", (0, 0)), "p": ("worse", (0, 12))}
    assert (found.paired, found.equal) == (80, 68) and len(found.flips) == 12
    assert all(f.name == "p@0.5" and not f.better for f in found.flips)
    assert any("Worse here: p@0.5 on t" in line for line in found.says())


def test_equal_runs_say_that_nothing_changed():
    rng = random.Random(0)
    full = [float(rng.random() < 0.5) for _ in range(30)]
    found = runs({"full": full, "p": full}, {"full": full, "p": full})
    assert found.equal == found.paired == 60 and not found.flips and not found.settings
    assert any("No policy is distinguishably" in line for line in found.says())


def test_cells_of_one_run_only_are_counted_and_not_compared():
    found = runs({"full": [1.0] * 8, "new": [1.0] * 8}, {"full": [1.0] * 6, "old": [0.0] * 8})
    assert (found.paired, found.only_here, found.only_there) == (6, 10, 8)
    assert {r.policy for r in found.rows} == {"full"}


def test_what_was_asked_for_otherwise_is_named():
    found = runs({"full": [1.0] * 8}, {"full": [1.0] * 8}, {"model": "n", "dtype": "bfloat16"})
    assert ("model", "m", "n") in found.settings and ("dtype", "–", "bfloat16") in found.settings


def test_runs_that_share_nothing_are_refused():
    with pytest.raises(AssayError, match="share no cell"):
        runs({"p": [1.0]}, {"q": [1.0]})
    with pytest.raises(AssayError, match="their examples are not the same"):
        runs({"p": [1.0]}, {"p": [1.0]}, {"seed": 3})


def test_it_is_said_on_paper_and_in_the_terminal(tmp_path):
    found = runs({"full": [1.0] * 8, "p": [0.0] * 8}, {"full": [1.0] * 8, "p": [1.0] * 8}, {"model": "<n>"})
    write_changes(found, tmp_path / "against.html")
    page = (tmp_path / "against.html").read_text()
    assert "p@0.5" in page and "&lt;n&gt;" in page and "wrong here, right there" in page
    console = Console(width=140, record=True, file=open("/dev/null", "w"))
    print_changes(found, console)
    said = console.export_text()
    assert "p@0.5" in said and "model: m here, <n> there" in said and "+0 −8" in said


def test_two_real_runs_of_one_seed_differ_in_nothing(tiny, tmp_path, capsys):
    grid = {"tasks": "needle", "budgets": "0.5", "length": 400, "examples": 1, "quiet": True}
    for name in ("a", "b"):
        compare(tiny, "knorm", out=tmp_path / name, **grid)
    found = against(tmp_path / "a", tmp_path / "b")
    assert found.paired == found.equal == 3 and not found.settings and found.other_prompts == 0
    assert (tmp_path / "a" / "against.html").is_file() and not (tmp_path / "b" / "against.html").exists()
    assert "3 cells are in both runs" in capsys.readouterr().out
