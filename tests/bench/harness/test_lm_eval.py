"""The harness itself on a tiny model, with tasks of its own kinds that need no network."""

import json
import sys
from pathlib import Path

import pytest
from tests.bench.harness.test_cached_lm import make_lively

from assay import cli
from assay.bench.harness import run
from assay.bench.harness.cached_lm import CachedLM
from assay.core.errors import AssayError

TASKS = Path(__file__).parents[2] / "fixtures" / "lm_eval"


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'assay[lm-eval]'")


def evaluate(tasks, cache, **settings):
    return run.evaluate(make_lively(), tasks, cache=cache, include=TASKS, **settings)


def test_every_kind_of_task_runs_and_a_policy_changes_what_it_finds(harness):
    tasks = "gates_choice,gates_written,gates_text"
    full, held = evaluate(tasks, "full"), evaluate(tasks, "knorm(recent=4)@0.25")
    assert set(full.results["results"]) == set(tasks.split(","))
    assert full.kept.share == 1 and held.kept.share < 0.3 and held.kept.contexts == full.kept.contexts == 24
    perplexities = [e.results["results"]["gates_text"]["word_perplexity,none"] for e in (full, held)]
    assert abs(perplexities[0] / perplexities[1] - 1) > 0.01
    samples = [[s["resps"] for s in e.results["samples"]["gates_choice"]] for e in (full, held)]
    assert all(a != b for a, b in zip(*samples, strict=True))
    assert "gates_choice" in held.table() and "tokens (2" in held.says() and "100.0%" in full.says()


def test_the_harness_scores_what_the_adapter_says(harness):
    found = evaluate("gates_choice", "snapkv@0.5").results["samples"]["gates_choice"]
    lm = CachedLM(make_lively(), "snapkv@0.5")
    for sample in found:
        asked = (
            [type("Request", (), {"args": tuple(args.values())}) for args in sample["arguments"].values()]
            if isinstance(sample["arguments"], dict)
            else [type("Request", (), {"args": tuple(args)}) for args in sample["arguments"]]
        )
        said = [pair[0] for pair in lm.loglikelihood(asked)]
        heard = [float(response[0][0]) for response in sample["resps"]]
        assert heard == pytest.approx(said, abs=1e-4)
        assert sample["acc"] == float(said.index(max(said)) == sample["doc"]["gold"])


def test_limit_and_an_unknown_task(harness):
    assert evaluate("gates_written", "full", limit=2).kept.contexts == 2
    with pytest.raises(AssayError, match="no task gates_nowhere"):
        evaluate("gates_nowhere", "full")
    with pytest.raises(AssayError, match="there is no such folder"):
        run.evaluate(make_lively(), "gates_text", include=TASKS / "nowhere")


def test_the_command_prints_the_table_and_writes_the_results(harness, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "_load", lambda *_: make_lively())
    out = tmp_path / "found.json"
    words = [
        "lm-eval",
        "m",
        "--tasks",
        "gates_choice",
        "--cache",
        "snapkv@0.5",
        "--include",
        str(TASKS),
        "--limit",
        "1",
    ]
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "--out", str(out)])
    printed = capsys.readouterr().out
    assert not end.value.code and "gates_choice" in printed and "snapkv@0.5: " in printed
    assert json.loads(out.read_text())["cache"] == "snapkv@0.5"
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "--out", str(out)])
    assert end.value.code == 2 and "exists" in capsys.readouterr().err


def test_without_the_harness_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(AssayError, match=r"lm-eval is not installed .*assay\[lm-eval\]"):
        run.evaluate(make_lively(), "gates_choice")
