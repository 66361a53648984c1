"""The grid end to end on a tiny model: what must agree does, nothing finished is measured twice, nothing is mixed."""

import errno
import sys

import pytest
import torch
from rich.console import Console

from assay.bench.compare import measure
from assay.bench.compare.cells import CellStore, read
from assay.bench.compare.run import compare
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer

GRID = {
    "tasks": "needle,ppl(continuation=40)",
    "budgets": "0.5",
    "length": 400,
    "examples": 2,
    "speed_steps": 2,
    "quiet": True,
}


@pytest.fixture
def counted(monkeypatch):
    """The cells that are really measured."""
    done = []
    original = measure.Bench.measure

    def spy(self, policy, budget, extras):
        done.append((policy, budget))
        return original(self, policy, budget, extras)

    monkeypatch.setattr(measure.Bench, "measure", spy)
    return done


def by_policy(result):
    return {(c["task"], c["example"], c["policy"], c["budget"]): c for c in result.cells}


def test_a_run_writes_cells_page_table_and_picture_and_always_has_full_and_random(tiny, tmp_path):
    result = compare(tiny, "snapkv", out=tmp_path / "run", **GRID)
    assert {p.name for p in result.folder.iterdir()} == {
        "run.json",
        "cells.jsonl",
        "cells.csv",
        "report.html",
        "picture.svg",
    }
    assert {c["policy"] for c in result.cells} == {"full", "random", "snapkv"}
    assert "12 of 12 cells" in repr(result) and len(repr(result)) < 500
    assert len(result.cells) == 2 * 2 * 3 == result.summary.finished == result.summary.planned


def test_a_budget_of_everything_agrees_with_full_to_the_last_bit(tiny, tmp_path):
    cells = by_policy(compare(tiny, ["snapkv@1", "keydiff@1"], out=tmp_path, **{**GRID, "budgets": "1"}))
    for (task, example, policy, _), cell in cells.items():
        full = cells[task, example, "full", "1"]
        assert cell["logprob"] == full["logprob"] and cell["bytes"] == full["bytes"] == full["bytes_full"], policy
        assert cell["kl"] in (None, 0.0)


def test_smaller_budgets_hold_fewer_bytes_and_only_in_the_layers_without_a_window(tiny, tmp_path):
    cells = by_policy(compare(tiny, "knorm", out=tmp_path, **{**GRID, "budgets": "0.5,0.25"}))
    for task, example, policy, budget in [k for k in cells if k[2] == "knorm"]:
        cell = cells[task, example, policy, budget]
        assert cell["kept"] == int(cell["tokens"] * float(budget))
        assert cell["bytes_full"] - cell["bytes"] == cell["bytes_full_eligible"] - cell["bytes_eligible"] > 0
        a_token = cell["bytes_full_eligible"] / cell["tokens"]
        assert cell["bytes_eligible"] <= (cell["kept"] + 16) * a_token  # room grows by 16 tokens at a time
        assert cell["peak_bytes"] >= cell["bytes_full"]


def test_a_policy_is_measured_as_if_it_were_alone(tiny, tmp_path):
    together = by_policy(compare(tiny, ["snapkv", "twinkv(snapkv)", "h2o"], out=tmp_path / "together", **GRID))
    for policy in ("snapkv", "h2o"):
        alone = by_policy(compare(tiny, policy, out=tmp_path / policy.replace("(", "-"), **GRID))
        for key, cell in alone.items():
            for number in ("logprob", "score", "bytes", "kept", "survived", "kl", "cell"):
                assert cell[number] == together[key][number], (key, number)


def test_the_forced_score_is_one_exactly_where_greedy_decoding_gives_the_answer(tiny, tmp_path):
    """The first answer is what the model itself continues with, so both ways of scoring must find it right."""
    ids = tiny.tokenizer.encode("one " * 40 + "and then")
    with torch.no_grad():
        for _ in range(3):
            ids.append(int(tiny(torch.tensor([ids]))[0][0, -1].argmax()))
    said = tiny.tokenizer.decode(ids[-3:])
    assert len(said.strip()) == 3, "the random model does not continue with letters; take another seed"
    (tmp_path / "mine.py").write_text(
        "from assay.tasks import Example, Task\n"
        "class Two(Task):\n"
        "    def examples(self, n, seed, length, count):\n"
        f"        for answer in ({said!r}, 'never said'):\n"
        "            yield Example('one ' * 40, 'and then', (answer,))\n"
    )
    for generate in (False, True):
        grid = {**GRID, "tasks": f"{tmp_path}/mine.py:Two", "budgets": "1"}
        result = compare(tiny, [], generate=generate, out=tmp_path / f"run-{generate}", **grid)
        scores = {c["wanted"]: c["score"] for c in result.cells if c["policy"] == "full"}
        assert scores == {said: 1.0, "never said": 0.0}, generate


def test_running_again_measures_nothing_and_more_examples_only_the_new_ones(tiny, tmp_path, counted):
    first = compare(tiny, "snapkv", out=tmp_path, **GRID)
    assert len(counted) == 12
    again = compare(tiny, "snapkv", out=tmp_path, **GRID)
    assert len(counted) == 12 and again.cells == first.cells
    more = compare(tiny, "snapkv", out=tmp_path, **{**GRID, "examples": 3})
    assert len(counted) == 18 and more.summary.finished == 18
    assert {c["cell"]: c for c in first.cells}.items() <= {c["cell"]: c for c in more.cells}.items()


def test_a_policy_added_later_meets_the_same_reference(tiny, tmp_path):
    compare(tiny, "snapkv", out=tmp_path / "grown", **GRID)
    grown = by_policy(compare(tiny, ["snapkv", "knorm"], out=tmp_path / "grown", **GRID))
    whole = by_policy(compare(tiny, ["snapkv", "knorm"], out=tmp_path / "whole", **GRID))
    for key, cell in whole.items():
        assert (cell["kl"], cell["logprob"], cell["bytes"]) == (
            grown[key]["kl"],
            grown[key]["logprob"],
            grown[key]["bytes"],
        )


def test_ctrl_c_keeps_what_is_finished_and_reports_it(tiny, tmp_path, monkeypatch):
    original, calls = measure.Bench.measure, []

    def stop(self, *args):
        calls.append(args)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(measure.Bench, "measure", stop)
    with pytest.raises(KeyboardInterrupt):
        compare(tiny, "snapkv", out=tmp_path, **GRID)
    assert len(read(tmp_path)[1]) == 5 and "7 of 12 cells are not finished" in (tmp_path / "report.html").read_text()
    monkeypatch.undo()
    assert compare(tiny, "snapkv", out=tmp_path, **GRID).summary.finished == 12


@pytest.mark.parametrize("changed", [{"seed": 1}, {"aware": True}, {"generate": True}])
def test_a_changed_setting_is_refused_by_name(tiny, tmp_path, changed):
    compare(tiny, [], out=tmp_path, **{**GRID, "examples": 1})
    with pytest.raises(AssayError, match=f"different run.*{next(iter(changed))}"):
        compare(tiny, [], out=tmp_path, **{**GRID, "examples": 1, **changed})


def test_a_sweep_carries_its_lengths_through_and_joins_the_folder_of_one(tiny, tmp_path, counted):
    grid = {**GRID, "tasks": "needle", "examples": 1}
    first = compare(tiny, "snapkv", out=tmp_path, **grid)
    both = compare(tiny, "snapkv", out=tmp_path, **{**grid, "length": "400,800"})
    assert (
        len(counted) == 6 and {c["cell"]: c for c in first.cells}.items() <= {c["cell"]: c for c in both.cells}.items()
    )
    assert [(t.name, t.task, t.length) for t in both.summary.tasks] == [
        ("needle at 400", "needle", 400),
        ("needle at 800", "needle", 800),
    ]
    by_length = {c["length"]: c["tokens"] for c in both.cells if c["policy"] == "full"}
    assert 1.5 * by_length[400] < by_length[800] <= 800 and by_length[400] <= 400
    assert [t.name for t in first.summary.tasks] == ["needle"]


def test_other_weights_under_the_same_name_are_another_run(tiny, tmp_path):
    compare(tiny, [], out=tmp_path, **{**GRID, "examples": 1})
    with torch.no_grad():
        tiny.blocks[0].mixer.q.weight[0, 0] += 1
    with pytest.raises(AssayError, match="checksum"):
        compare(tiny, [], out=tmp_path, **{**GRID, "examples": 1})


def test_an_edited_policy_of_ones_own_is_measured_again(tiny, tmp_path, counted):
    source = (
        "from assay.core.policy import Policy\n"
        "class Last(Policy):\n    def score(self, layer, store):\n        return store.flat().positions.float()\n"
    )
    (tmp_path / "mine.py").write_text(source)
    policy = f"{tmp_path}/mine.py:Last"
    compare(tiny, policy, out=tmp_path / "run", **GRID)
    before = len(counted)
    (tmp_path / "mine.py").write_text(source + "# edited\n")
    compare(tiny, policy, out=tmp_path / "run", **GRID)
    again = counted[before:]
    assert {p for p, _ in again} == {policy, "full"}  # full only as the reference; its cell is not written again


def test_before_the_question_by_default_and_with_it_only_when_aware(tiny, tmp_path, monkeypatch):
    seen = []
    original = measure.Prefill.__init__

    def spy(self, model, context, policies, **how):
        seen.append(context.shape[1])
        original(self, model, context, policies, **how)

    monkeypatch.setattr(measure.Prefill, "__init__", spy)
    grid = {**GRID, "tasks": "needle", "examples": 1}
    unaware = compare(tiny, "snapkv", out=tmp_path / "unaware", **grid)
    aware = compare(tiny, "snapkv", out=tmp_path / "aware", aware=True, **grid)
    example = next(iter(unaware.plan.prompts.values()))[0].example
    assert seen[0] == 1 + len(example.context) and seen[1] == len(example.context + example.question)
    assert "aware: policies saw the question" in aware.page.read_text()
    assert "aware: policies saw the question" not in unaware.page.read_text()


def test_a_generation_task_holds_its_budget_while_the_trace_is_fed(tiny, tmp_path):
    result = compare(tiny, ["recent"], out=tmp_path, **{**GRID, "tasks": "restated", "length": 900, "examples": 1})
    cell = next(c for c in result.cells if c["policy"] == "recent")
    assert cell["metric"] == "generation" and cell["kept"] <= 0.5 * cell["tokens"] + measure.STEP


def test_a_dry_run_measures_and_writes_nothing(tiny, tmp_path, counted):
    console = Console(width=160, record=True, file=open("/dev/null", "w"))
    grid = {k: v for k, v in GRID.items() if k != "quiet"}
    result = compare(
        tiny, ["snapkv", "snapkv(recent=300)"], out=tmp_path / "run", dry_run=True, console=console, **grid
    )
    said = console.export_text()
    assert not counted and not (tmp_path / "run").exists() and result.expected > 0
    assert "snapkv@0.5" in said and "impossible" in said and "304 are pinned" in said


def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_keeps_the_cells(tiny, tmp_path, monkeypatch):
    original, written = CellStore.write, []

    def fill(self, cell):
        if len(written) == 4:
            monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        written.append(cell)
        original(self, cell)

    monkeypatch.setattr(CellStore, "write", fill)
    with pytest.raises(AssayError, match="disk is full.*4 finished cells are kept"):
        compare(tiny, "snapkv", out=tmp_path, **GRID)
    monkeypatch.undo()
    assert len(read(tmp_path)[1]) == 4
    assert compare(tiny, "snapkv", out=tmp_path, **GRID).summary.finished == 12


def test_a_cell_that_cannot_be_measured_is_skipped_with_its_reason_and_tried_again(tiny, tmp_path, monkeypatch):
    original = measure.Bench.measure

    def refuse(self, policy, *rest):
        if policy == "snapkv":
            raise AssayError("not today")
        return original(self, policy, *rest)

    monkeypatch.setattr(measure.Bench, "measure", refuse)
    found = compare(tiny, "snapkv", out=tmp_path, **GRID).summary
    assert found.finished == found.planned == 8 and {(s.what, s.why) for s in found.skipped} >= {("snapkv@0.5 on needle", "not today")}
    monkeypatch.undo()
    mended = compare(tiny, "snapkv", out=tmp_path, **GRID).summary
    assert mended.finished == 12 and not mended.skipped


def test_the_same_seed_gives_the_same_numbers(tiny, tmp_path):
    timeless = lambda c: {k: v for k, v in c.items() if "second" not in k and k not in ("first_token", "measured")}  # noqa: E731
    runs = [compare(tiny, ["random", "snapkv"], out=tmp_path / str(i), **GRID) for i in range(2)]
    assert list(map(timeless, runs[0].cells)) == list(map(timeless, runs[1].cells))


def test_a_budget_in_bytes_is_kept_in_bytes(tiny, tmp_path):
    result = compare(tiny, "knorm", out=tmp_path, **{**GRID, "budgets": "20KiB", "tasks": "ppl(continuation=40)"})
    cells = [c for c in result.cells if c["policy"] == "knorm"]
    assert cells and all(10 * 1024 < c["bytes_eligible"] <= 20 * 1024 < c["bytes_full_eligible"] for c in cells)


def test_a_model_whose_layers_all_have_windows_is_measured_and_says_that_nothing_can_be_saved(tiny, tmp_path):
    windowed = Transformer(TransformerConfig(256, 32, (tiny.config.blocks[1],) * 2, context=2048)).eval()
    windowed.tokenizer, windowed.name = tiny.tokenizer, "windowed"
    result = compare(windowed, "snapkv", out=tmp_path, **GRID)
    first = {c["logprob"] for c in result.cells if (c["task"], c["example"]) == ("needle", 0)}
    assert len(first) == 1 and not any(c["skipped"] for c in result.cells)
    assert (
        any("window" in note for _, note in result.summary.notes) and "nothing to compress" in result.page.read_text()
    )


@pytest.mark.parametrize("on", ["slurm", "ray:", "", "rays"])
def test_another_place_to_measure_is_refused_in_one_line(tiny, on):
    with pytest.raises(AssayError, match="write ray for this machine"):
        compare(tiny, [], on=on, **GRID)


def test_without_ray_the_mend_is_named(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AssayError, match=r"pip install 'assay\[ray\]'"):
        compare(tiny, [], on="ray", **GRID)
