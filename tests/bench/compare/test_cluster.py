"""The grid on a Ray cluster of two workers gives the local numbers, loses nothing to a killed worker, and stops cleanly."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from assay.bench.compare import compare
from assay.bench.compare.cells import read
from assay.bench.compare.group import Lost
from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer
from assay.subjects.words import WordTokenizer
from assay.tasks import resolve

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'assay[ray]'")

GRID = {"tasks": "recall", "budgets": "0.5", "length": 120, "examples": 4, "speed_steps": 2, "quiet": True}
TIMES = ("measured", "first_token", "tokens_per_second")

DEADLY = """
import os, signal
from pathlib import Path
from assay.core.policy import Policy

class Deadly(Policy):
    def score(self, layer, store):
        with open({log!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        if {always} or not Path({mark!r}).exists():
            Path({mark!r}).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return store.flat().positions.float()
"""


def words_model() -> Transformer:
    """Random weights over the words of `recall`; two layers, the second without rotation."""
    torch.manual_seed(0)
    words = tuple(resolve("recall").vocabulary)

    def block(position):
        options = {"heads": 2, "kv_heads": 2, "head_dim": 8, "window": None, "position": position}
        return BlockConfig(Spec("softmax", options), Spec("gated", {"hidden": 32, "activation": "silu"}))

    rope = {"part": "rope", "options": {"theta": 1e4}}
    model = Transformer(TransformerConfig(len(words), 16, (block(rope), block(None)), context=256)).eval()
    model.tokenizer, model.name = WordTokenizer(words), "words"
    return model


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes on this machine."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    found = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield found.address_info["gcs_address"]
    ray.shutdown()


@pytest.fixture(autouse=True)
def one_thread():
    """Two tasks fit on two processors only where each wants one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def numbers(folder):
    return {
        c["cell"]: {k: v for k, v in c.items() if k not in TIMES and not k.startswith("seconds")}
        for c in read(folder)[1]
    }


def test_the_cells_are_those_of_a_local_run_to_the_last_bit(cluster, tmp_path):
    compare(words_model(), ["snapkv", "twinkv(snapkv)"], out=tmp_path / "here", **GRID)
    compare(words_model(), ["snapkv", "twinkv(snapkv)"], out=tmp_path / "there", on="ray", **GRID)
    here, there = numbers(tmp_path / "here"), numbers(tmp_path / "there")
    assert here == there and len(here) == 4 * 4
    assert read(tmp_path / "here")[0]["fixed"] == read(tmp_path / "there")[0]["fixed"]


def test_what_is_finished_is_not_measured_again_wherever_it_was(cluster, tmp_path):
    compare(words_model(), "snapkv", out=tmp_path, **{**GRID, "examples": 2})
    before = numbers(tmp_path)
    found = compare(words_model(), "snapkv", out=tmp_path, on="ray", **GRID)
    lines = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert len(lines) == len(found.cells) == 4 * 3 and before.items() <= numbers(tmp_path).items()


def test_a_killed_worker_costs_only_its_unfinished_cells(cluster, tmp_path):
    log, mark = tmp_path / "log", tmp_path / "mark"
    (tmp_path / "mine.py").write_text(DEADLY.format(log=str(log), mark=str(mark), always=False))
    found = compare(words_model(), f"{tmp_path}/mine.py:Deadly", out=tmp_path / "run", on="ray", **GRID)
    assert found.summary.finished == found.summary.planned == 4 * 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "cells.jsonl").read_text().splitlines()]
    assert len(lines) == len({c["cell"] for c in lines}) == 4 * 3  # nothing finished was written, or measured, twice
    assert mark.exists() and len(set(log.read_text().split())) >= 2  # a process died, another took over


def test_a_worker_that_always_dies_is_reported_and_the_rest_is_kept_and_resumable(cluster, tmp_path):
    log, mark = tmp_path / "log", tmp_path / "mark"
    (tmp_path / "mine.py").write_text(DEADLY.format(log=str(log), mark=str(mark), always=True))
    policy = f"{tmp_path}/mine.py:Deadly"
    with pytest.raises(Lost, match="workers died 3 times.*recall at 120.*the same command tries these again"):
        compare(words_model(), [policy, "snapkv"], out=tmp_path / "run", on="ray", **{**GRID, "examples": 1})
    done = {(c["policy"], c["example"]) for c in read(tmp_path / "run")[1]}
    assert {p for p, _ in done} >= {"full", "random"} and policy not in {p for p, _ in done}
    assert "cells are not finished" in (tmp_path / "run" / "report.html").read_text()
    more = compare(words_model(), "snapkv", out=tmp_path / "run", on="ray", **{**GRID, "examples": 1})
    assert more.summary.finished == 3


def test_an_error_on_a_worker_is_the_one_that_would_have_been_raised_here(cluster, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from assay.core.policy import Policy\n"
        "class Wrong(Policy):\n    def score(self, layer, store):\n        raise ZeroDivisionError('a bug')\n"
    )
    with pytest.raises(ZeroDivisionError, match="a bug"):
        compare(words_model(), f"{tmp_path}/mine.py:Wrong", out=tmp_path / "run", on="ray", **GRID)


def test_ctrl_c_keeps_the_finished_cells_of_a_cluster_given_by_its_address(cluster, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\nfrom assay.core.policy import Policy\n"
        "class Slow(Policy):\n    def score(self, layer, store):\n        time.sleep(1)\n        return store.flat().positions.float()\n"
    )
    (tmp_path / "drive.py").write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
        "import torch; torch.set_num_threads(1)\n"
        "from test_cluster import words_model, GRID\nfrom assay.bench.compare import compare\n"
        f"compare(words_model(), {str(tmp_path / 'slow.py')!r} + ':Slow', out={str(tmp_path / 'run')!r}, on='ray:{cluster}',"
        " **{**GRID, 'examples': 40})\n"
    )
    driver = subprocess.Popen([sys.executable, str(tmp_path / "drive.py")], stderr=subprocess.PIPE, text=True)
    cells, until = tmp_path / "run" / "cells.jsonl", time.monotonic() + 90
    while time.monotonic() < until and driver.poll() is None:
        if cells.exists() and cells.read_text().count("\n") >= 3:
            break
        time.sleep(0.1)
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode != 0 and "KeyboardInterrupt" in said
    finished = len(read(tmp_path / "run")[1])
    assert 3 <= finished < 40 * 3 and f"{40 * 3 - finished} of 120 cells" in (tmp_path / "run/report.html").read_text()
