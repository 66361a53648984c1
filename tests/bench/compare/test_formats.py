"""Policies in number formats, contexts read in pieces, and budgets matched in bytes: what is held is what was promised."""

import pytest

from assay.bench.compare import compare
from assay.bench.compare.asked import built, code_of, policies_asked
from assay.bench.compare.measure import Bench
from assay.core.errors import AssayError

GRID = {
    "tasks": "needle,ppl(continuation=40)",
    "budgets": "0.5",
    "length": 400,
    "examples": 1,
    "speed_steps": 2,
    "quiet": True,
}
INT4, INT8 = "int4(group=8)", "int8"  # the tiny model's heads have 8 dimensions


def by_policy(result):
    return {(c["task"], c["policy"], c["budget"]): c for c in result.cells}


def test_a_format_is_part_of_the_name_and_of_the_code():
    asked = policies_asked(["snapkv+int4", "knorm+int8@0.25", "full+int4", "full"], ["0.5"])
    assert asked == {"random": (), "snapkv+int4": ("0.5",), "knorm+int8": ("0.25",), "full+int4": ("1",)}
    assert code_of("snapkv+int4") != code_of("snapkv+int8") != code_of("snapkv")
    assert (
        built("full+int4").policy is None and built("full").format is None and built("snapkv+int4").format is not None
    )
    with pytest.raises(AssayError, match="keeps everything"):
        policies_asked(["full+int4@0.5"], ["0.5"])
    assert policies_asked(["full+int4"], ["0.5", "0.25"], "bytes")["full+int4"] == ("0.5", "0.25")


def test_an_unknown_format_is_named_before_a_model_is_loaded():
    with pytest.raises(AssayError, match="unknown format 'int5'; nearest: int"):
        compare("no-such-model", ["snapkv+int5"], quiet=True)


def test_a_format_saves_bytes_and_full_precision_stays_the_reference(tiny, tmp_path):
    cells = by_policy(compare(tiny, ["snapkv", f"snapkv+{INT4}", f"full+{INT4}", f"full+{INT8}"], out=tmp_path, **GRID))
    for task in ("needle", "ppl(continuation=40)"):
        full, int4, int8 = (cells[task, name, "1"] for name in ("full", f"full+{INT4}", f"full+{INT8}"))
        assert int4["bytes_eligible"] < int8["bytes_eligible"] < full["bytes_eligible"]
        assert int4["kept"] == full["kept"] == full["tokens"] and int4["survived"] in (None, 1.0)
        assert {c["bytes_full"] for (t, _, _), c in cells.items() if t == task} == {full["bytes"]}
        assert cells[task, f"snapkv+{INT4}", "0.5"]["bytes"] < cells[task, "snapkv", "0.5"]["bytes"]
        assert cells[task, f"snapkv+{INT4}", "0.5"]["kept"] == cells[task, "snapkv", "0.5"]["kept"]
    assert (
        0
        < cells["ppl(continuation=40)", f"full+{INT8}", "1"]["kl"]
        < cells["ppl(continuation=40)", f"full+{INT4}", "1"]["kl"]
    )
    assert cells["ppl(continuation=40)", "full", "1"]["kl"] == 0.0


def test_a_policy_in_full_precision_is_measured_as_if_no_format_were_there(tiny, tmp_path):
    alone = by_policy(compare(tiny, "snapkv", out=tmp_path / "alone", **GRID))
    beside = by_policy(compare(tiny, ["snapkv", f"full+{INT4}", f"snapkv+{INT4}"], out=tmp_path / "beside", **GRID))
    for key, cell in alone.items():
        assert all(cell[name] == beside[key][name] for name in ("cell", "logprob", "bytes", "kl", "kept")), key


def test_a_format_added_later_meets_the_same_reference(tiny, tmp_path):
    compare(tiny, "snapkv", out=tmp_path / "grown", **GRID)
    grown = by_policy(compare(tiny, ["snapkv", f"snapkv+{INT8}"], out=tmp_path / "grown", **GRID))
    whole = by_policy(compare(tiny, ["snapkv", f"snapkv+{INT8}"], out=tmp_path / "whole", **GRID))
    for key, cell in whole.items():
        assert (cell["kl"], cell["logprob"], cell["bytes_full"]) == tuple(
            grown[key][n] for n in ("kl", "logprob", "bytes_full")
        )


def test_a_format_that_does_not_fit_the_model_is_refused_with_the_reason_and_the_rest_runs(tiny, tmp_path):
    found = compare(tiny, ["snapkv+int4", "snapkv"], out=tmp_path, **GRID).summary
    assert {r.name for t in found.tasks for r in t.rows} == {"random@0.5", "snapkv@0.5"}
    assert all("groups of 32 do not divide" in s.why for s in found.skipped) and len(found.skipped) == 2


def test_matched_bytes_are_held_by_every_arm_whatever_its_format(tiny, tmp_path):
    grid = {**GRID, "match": "bytes", "budgets": "0.5,0.25"}
    result = compare(tiny, [f"snapkv+{INT4}", f"snapkv+{INT8}", f"full+{INT4}"], out=tmp_path, **grid)
    cells = by_policy(result)
    for (_, policy, budget), cell in cells.items():
        if policy == "full":
            continue
        target = float(budget) * cell["bytes_full_eligible"]
        assert cell["bytes_eligible"] <= target, (policy, budget)
        if policy != f"full+{INT4}":
            a_token = cell["bytes_full_eligible"] / cell["tokens"]
            assert cell["bytes_eligible"] > target - 17 * a_token or cell["kept"] == cell["tokens"], (policy, budget)
    for task in ("needle", "ppl(continuation=40)"):
        kept = [cells[task, p, "0.25"]["kept"] for p in ("random", f"snapkv+{INT8}", f"snapkv+{INT4}")]
        assert kept == sorted(kept) and kept[0] < kept[1]
        assert cells[task, f"full+{INT4}", "0.5"]["kept"] == cells[task, f"full+{INT4}", "0.5"]["tokens"]
    left_out = [r for r in result.summary.skipped if r.what.startswith(f"full+{INT4}@0.25")]
    assert left_out and all("keeps every token and holds" in r.why for r in left_out)
    assert "shares of the full cache&#39;s bytes" in result.page.read_text()


def test_tokens_cannot_be_matched_in_bytes(tiny, tmp_path):
    with pytest.raises(AssayError, match="budget 100tok: with match=bytes write a share"):
        compare(tiny, "snapkv@100tok", out=tmp_path, **{**GRID, "match": "bytes"})
    with pytest.raises(AssayError, match="match='money'"):
        compare(tiny, "snapkv", out=tmp_path, **{**GRID, "match": "money"})


def test_in_pieces_the_peak_stays_bounded_and_the_budget_is_held(tiny, tmp_path):
    grid = {**GRID, "length": 800, "tasks": "needle"}
    whole = by_policy(compare(tiny, "knorm@100tok", out=tmp_path / "whole", **grid))
    pieces = by_policy(
        compare(tiny, ["knorm@100tok", f"knorm+{INT8}@100tok"], out=tmp_path / "pieces", chunk=64, **grid)
    )
    one, other = whole["needle", "knorm", "100tok"], pieces["needle", "knorm", "100tok"]
    assert one["kept"] == other["kept"] == 100 and other["peak_bytes"] < 0.6 * one["peak_bytes"]
    assert pieces["needle", f"knorm+{INT8}", "100tok"]["bytes"] < other["bytes"]
    assert (
        one["cell"] != other["cell"] and pieces["needle", "full", "1"]["bytes"] == whole["needle", "full", "1"]["bytes"]
    )


def test_one_piece_is_a_whole_prefill_to_the_last_bit(tiny, tmp_path):
    whole = by_policy(compare(tiny, "snapkv", out=tmp_path / "whole", **GRID))
    piece = by_policy(compare(tiny, "snapkv", out=tmp_path / "piece", chunk=1000, **GRID))
    for key, cell in whole.items():
        assert (cell["logprob"], cell["kept"], cell["bytes"]) == tuple(
            piece[key][n] for n in ("logprob", "kept", "bytes")
        ), key


def test_in_pieces_a_ratio_is_of_the_whole_context_where_part_of_it_stands_for_a_generation(tiny, tmp_path):
    grid = {**GRID, "tasks": "restated", "length": 900}
    cell = by_policy(compare(tiny, "recent", out=tmp_path, chunk=64, **grid))["restated", "recent", "0.5"]
    assert 0.4 * cell["tokens"] < cell["kept"] <= 0.5 * cell["tokens"] + 16


def test_one_prefill_serves_all_policies_of_a_format(tiny, tmp_path, monkeypatch):
    made = []
    original = Bench.__init__

    def spy(self, *given, **named):
        made.append(named.get("format"))
        original(self, *given, **named)

    monkeypatch.setattr(Bench, "__init__", spy)
    compare(tiny, ["snapkv", "knorm", f"snapkv+{INT8}", f"knorm+{INT8}"], out=tmp_path, **{**GRID, "tasks": "needle"})
    assert len(made) == 2 and made[0] is None and made[1] is not None
