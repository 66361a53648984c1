"""`assay compare` hands over what was asked and nothing else; bad words end before a model is loaded."""

import time

import pytest

from assay import cli
from assay.bench.compare import run as grid


class Asked:
    """Stands in for a result, so that only the handing over is tested here; tests/bench/compare runs the grid."""

    page = "runs/x/report.html"

    def print(self):
        print("tables")


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def take(model, *args, **settings):
        calls.append((model, args, settings))
        return Asked()

    monkeypatch.setattr(grid, "compare", take)
    return calls


def run(words, capsys):
    code = 0
    try:
        cli.main(words)
    except SystemExit as end:
        code = end.code or 0
    return code, *capsys.readouterr()


def test_only_what_was_said_is_set(asked, capsys):
    code, out, _ = run(["compare", "gemma-3-270m"], capsys)
    model, _, settings = asked[0]
    assert (code, model) == (0, "gemma-3-270m")
    assert "parts" not in settings
    assert {key for key, value in settings.items() if value not in (None, False)} == set()
    assert out.splitlines() == ["tables", "report: runs/x/report.html"]


def test_every_option_arrives(asked, capsys):
    words = "compare m snapkv twinkv(snapkv)@0.5 --tasks needle,ppl --budgets .5,64tok --length 512,1024 --on ray"
    words += " --chunk 256 --match bytes --examples 3 --seed 7"
    words += " --out runs/y --aware --generate --device cpu --dtype bfloat16 --max-loss 2% --max-bytes 0.5"
    assert run(words.split(), capsys)[0] == 0
    settings = asked[0][2]
    assert settings.pop("parts") == ["snapkv", "twinkv(snapkv)@0.5"]
    assert str(settings.pop("out")) == "runs/y" and settings.pop("on") == "ray"
    assert settings == {
        "tasks": "needle,ppl",
        "budgets": ".5,64tok",
        "length": "512,1024",
        "examples": 3,
        "seed": 7,
        "aware": True,
        "chunk": 256,
        "match": "bytes",
        "generate": True,
        "device": "cpu",
        "dtype": "bfloat16",
        "max_loss": 0.02,
        "max_bytes": 0.5,
        "dry_run": False,
    }


def test_a_dry_run_prints_no_report(asked, capsys):
    assert "report" not in run(["compare", "m", "--dry-run"], capsys)[1]


@pytest.mark.timed
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["snapvk"], "unknown policy 'snapvk'; nearest: snapkv"),
        (["snapkv("], "this bracket is not closed"),
        (["snapkv(widnow=3)"], "snapkv has no option widnow; it takes"),
        (["snapkv", "--tasks", "nedle"], "unknown task 'nedle'; nearest: needle"),
        (["snapkv", "--budgets", "1.5"], "budget '1.5'"),
        (["snapkv", "--budgets", "0"], "budget '0'"),
        (["snapkv", "--examples", "0"], "examples=0"),
        (["snapkv", "--length", "x"], "length 'x': whole numbers of tokens are needed"),
        (["snapkv", "--length", "512,0"], "length '0'"),
        (["snapkv", "--on", "slurm"], "on='slurm': write ray"),
        (["snapkv", "--max-loss", "little"], "--max-loss 'little': write a share"),
        (["snapkv", "--tasks", "text:/nowhere.txt"], "/nowhere.txt"),
        (["./nowhere.py:P"], "there is no file nowhere.py"),
    ],
)
def test_bad_words_end_before_a_model_is_loaded(words, why, capsys):
    start = time.perf_counter()
    code, _, err = run(["compare", "gemma-3-270m", *words, "--dry-run"], capsys)
    assert code == 2 and err.startswith("assay: ") and why in err
    assert time.perf_counter() - start < 2


def test_an_unknown_model_gives_the_nearest(capsys):
    code, _, err = run(["compare", "gema-3-270m", "snapkv"], capsys)
    assert code == 2 and "unknown model 'gema-3-270m'; nearest: gemma-3-270m" in err


def test_ctrl_c_in_the_grid_says_how_to_go_on(monkeypatch, capsys):
    def stop(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "compare", stop)
    code, _, err = run(["compare", "m", "twinkv(snapkv)"], capsys)
    assert code == 130 and "go on with: assay compare m 'twinkv(snapkv)'" in err


def test_a_report_of_no_run_is_one_line(tmp_path, capsys):
    code, _, err = run(["report", str(tmp_path)], capsys)
    assert code == 2 and "holds no run" in err


def test_a_comparison_of_two_runs_needs_both(tmp_path, capsys):
    code, _, err = run(["report", str(tmp_path), "--against", str(tmp_path / "no")], capsys)
    assert code == 2 and err.startswith("assay: ") and "holds no run" in err
