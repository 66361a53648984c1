"""The speed run on a small random model: both sides are measured, in turns, and what is said follows from the samples."""

from __future__ import annotations

import io
import json
import os
import sys
import types

import pytest
import torch
from rich.console import Console

from assay import checkpoints
from assay.bench import speed
from assay.bench.speed import loading, measure, peers, small
from assay.bench.speed.result import Ratio
from assay.bench.speed.timing import Memory, middle, taking_turns, threads
from assay.core.errors import AssayError

SETTINGS = {"prompt": 4, "tokens": 3, "prefill": 40, "rounds": 2, "thread_count": 1}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    out = tmp_path_factory.mktemp("speed") / "speed.json"
    before = torch.get_num_threads(), os.environ.get("ASSAY_CACHE")
    result = speed.run(tiny=True, out=out, **SETTINGS)
    assert (torch.get_num_threads(), os.environ.get("ASSAY_CACHE")) == before
    return result, json.loads(out.read_text())


def test_both_sides_are_measured_in_both_storages(found):
    result, _ = found
    kinds = [("decode", "float32"), ("prefill", "float32"), ("decode", "bfloat16"), ("prefill", "bfloat16")]
    assert [(r.what, r.storage) for r in result.ratios] == kinds
    for r in result.ratios:
        assert r.ratio == pytest.approx(r.ours / r.theirs) and r.ours > 0
        per_round = SETTINGS["tokens"] - 1 if r.what == "decode" else 1
        assert {side["samples"] for side in r.seconds.values()} == {SETTINGS["rounds"] * per_round}
        tokens = 1 if r.what == "decode" else SETTINGS["prefill"]
        assert r.ours == pytest.approx(tokens / r.seconds["assay"]["median"])


def test_both_sides_compute_the_same(found):
    gaps = found[0].agreement
    assert gaps["float32"] < 1e-4 and gaps["bfloat16"] < 0.1


def test_the_share_of_bandwidth_follows_from_the_weights(found):
    result, _ = found
    for row, ratio in zip(result.bandwidth, [r for r in result.ratios if r.what == "decode"], strict=True):
        assert row["read"] == pytest.approx(row["bytes"] / ratio.seconds["assay"]["median"])
        assert row["share"] == pytest.approx(row["read"] / row["machine"])
    assert result.bandwidth[1]["bytes"] < 0.6 * result.bandwidth[0]["bytes"]


def test_json_says_what_the_table_says(found):
    result, written = found
    assert written["kind"] == "measured" and len(written["ratios"]) == 4
    assert written["ratios"][0]["reached"] == (result.ratios[0].ratio >= measure.WANTED["decode", "float32"])
    said = io.StringIO()
    result.print(Console(file=said, width=160))
    for words in ("measured", "decode", "prefill", f"{result.ratios[0].ratio:.2f}", "machine reads at", "first logits"):
        assert words in said.getvalue()


def test_without_transformers_there_are_no_ratios_and_a_note_says_so(monkeypatch):
    monkeypatch.setattr(peers, "missing", lambda package: f"{package} is not installed")
    result = speed.run(tiny=True, storages=("float32",), **SETTINGS)
    assert result.notes == ["transformers is not installed: no ratios"]
    assert all(r.ratio is None and r.reached is None for r in result.ratios)


def test_weights_read_leave_out_tables_of_which_one_row_is_read(tmp_path):
    tied = checkpoints.load(small.source(tmp_path / "m"))
    whole = sum(p.nbytes for p in tied.parameters())
    assert measure.weights_read(tied) == whole
    tied.config = types.SimpleNamespace(tied=False)
    assert measure.weights_read(tied) == whole - tied.embed.weight.nbytes


def test_sides_take_turns_and_the_first_round_is_not_counted():
    order, clock = [], iter(range(100))

    def side(name):
        return lambda: order.append(name) or [next(clock)]

    samples = taking_turns({"a": side("a"), "b": side("b")}, 2)
    assert order == ["a", "b", "b", "a", "a", "b"] and samples == {"a": [3, 4], "b": [2, 5]}


def test_medians_memory_and_threads():
    assert middle([5.0, 1.0, 2.0])["median"] == 2.0 and middle([4.0])["high"] == 4.0
    assert Memory(1 << 20).read() > 1e6
    before = torch.get_num_threads()
    with threads(1) as count:
        assert count == torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_llama_cpp_is_printed_where_it_is_installed_and_gates_nothing(monkeypatch, tmp_path):
    class Llama:
        def __init__(self, model_path, **options):
            assert model_path.endswith(".gguf")

        def generate(self, tokens, temp):
            while True:
                yield 1

    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Llama))
    bench = measure._Bench(str(tmp_path / "m.gguf"), tmp_path, 4, 3, 8, 1, 1, lambda text: None)
    bench.ratios = [Ratio("decode", "float32", 10.0, None, None, seconds={"assay": {"median": 0.1}})]
    monkeypatch.setattr(peers, "missing", lambda package: None)
    bench._llama_cpp()
    assert (bench.ratios[-1].peer, bench.ratios[-1].reached) == ("llama.cpp", None) and bench.ratios[-1].ratio < 1


def test_a_gguf_file_is_loaded_through_an_empty_cache(monkeypatch, tmp_path):
    folder, caches = small.source(tmp_path / "m"), []
    plain = checkpoints.load

    def load(name, dtype="float32"):
        caches.append(os.environ["ASSAY_CACHE"])
        return plain(folder, dtype=dtype)

    monkeypatch.setattr(checkpoints, "load", load, raising=False)
    monkeypatch.setenv("ASSAY_CACHE", "/mine")
    times, again, note = loading.timed("some.gguf", tmp_path, None)
    again("bfloat16")
    assert note is None and times["first"] > 0 and times["later"] > 0
    assert caches == [str(tmp_path / "cache")] * 3 and os.environ["ASSAY_CACHE"] == "/mine"


@pytest.mark.parametrize("bad", [{"tokens": 1}, {"rounds": 0}, {"prefill": 10_000}, {"prompt": 0}])
def test_what_cannot_be_measured_is_refused(bad):
    with pytest.raises(AssayError):
        speed.run(tiny=True, **(SETTINGS | bad))


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "speed.json").write_text("mine")
    with pytest.raises(AssayError, match="is there already"):
        speed.run(tiny=True, out=tmp_path / "speed.json", **SETTINGS)
