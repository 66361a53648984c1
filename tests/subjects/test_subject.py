"""A subject is trained once, read from then on, and trained again when its files are damaged or its recipe changes."""

import os
import subprocess
import sys

import pytest
import torch

from assay.core.config import Spec
from assay.core.errors import AssayError
from assay.subjects import Recipe, Stage, Subject
from assay.subjects.recipe import small
from assay.training import Batch, Training

WORDS = ("a", "b", "c", "d")


class Counting(Subject):
    """Says the letters in turn."""

    trained = 0

    def __init__(self, seed: int = 0, shift: int = 1) -> None:
        self.name, self.seed, self.shift = "counting", seed, shift

    def recipe(self) -> Recipe:
        channel = Spec("gated", {"hidden": 16})
        config = small(WORDS, layers=1, width=16, heads=2, kv_heads=2, channel=channel, context=16)
        return Recipe(
            config, WORDS, (Stage(30, 6, 6, 24),), Training(30, learning_rate=1e-2, warmup=3), {}, seed=self.seed
        )

    def batch_at(self, step: int) -> Batch:
        type(self).trained += 1
        first = self.recipe().rng(step).integers(4, size=(4, 1))
        tokens = torch.from_numpy(first + self.shift * torch.arange(6).numpy()) % 4
        return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def batches_of_a_load(subject: Subject) -> int:
    before = Counting.trained
    subject.load()
    return Counting.trained - before


def test_a_loaded_subject_speaks() -> None:
    model = Counting().load()
    assert model.name == "counting"
    assert model.generate("a b c", max_tokens=3) == "d a b"


def test_the_second_load_reads_the_same_weights_without_training() -> None:
    subject = Counting()
    assert not subject.cached
    first = subject.load()
    assert subject.cached
    assert batches_of_a_load(subject) < 30
    second = Counting().load()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_training_again_gives_the_same_weights() -> None:
    first, _ = Counting().train()
    second, _ = Counting().train()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other, _ = Counting(seed=1).train()
    assert not torch.equal(first.embed.weight, other.embed.weight)


def test_neither_threads_nor_the_global_seed_decide_and_neither_is_changed() -> None:
    first, _ = Counting().train()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(7)
    try:
        second = Counting().load()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    drawn = torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    torch.manual_seed(7)
    Counting().load()
    assert torch.equal(torch.rand(3), drawn)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "training.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damaged_files_are_made_again(file: str, damage: str) -> None:
    subject = Counting()
    good = subject.load().embed.weight.clone()
    path = subject.folder / file
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        at = raw.index(b"sha256") + 12 if file == "training.json" else len(raw) - 20
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    assert not subject.cached
    assert batches_of_a_load(subject) > 30
    assert torch.equal(subject.load().embed.weight, good)
    assert not [left for left in subject.folder.parent.iterdir() if ".part" in left.name]


def test_another_recipe_or_another_generator_of_data_is_another_folder() -> None:
    folders = {Counting().folder, Counting(seed=1).folder, Counting(shift=2).folder}
    assert len(folders) == 3


def test_device_and_dtype_are_those_asked_for() -> None:
    model = Counting().load(dtype="bfloat16")
    assert model.blocks[0].mixer.q.weight.dtype == torch.bfloat16
    assert Counting().load(dtype=torch.float64).embed.weight.dtype == torch.float64


def test_a_cache_that_cannot_be_written_is_one_line(own_cache) -> None:
    own_cache.write_text("a file where the folder should be")
    with pytest.raises(AssayError, match="set ASSAY_CACHE"):
        Counting().load()


LOAD = """
from assay.subjects import Stage
from assay.subjects.recall_small import RecallSmall
print(RecallSmall(stages=(Stage(60, 12, 20, 64),)).load().embed.weight.sum().item())
"""


def test_of_two_processes_only_one_trains(own_cache) -> None:
    command = [sys.executable, "-c", LOAD]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("training it once" in errors for _, errors in told) == 1
    assert told[0][0] == told[1][0]


def test_a_recipe_that_does_not_add_up_is_refused() -> None:
    config = Counting().recipe().config
    with pytest.raises(AssayError, match="steps"):
        Recipe(config, WORDS, (Stage(5, 6, 6, 24),), Training(6), {})
    with pytest.raises(AssayError, match="words"):
        Recipe(config, WORDS[:3], (Stage(6, 6, 6, 24),), Training(6), {})
