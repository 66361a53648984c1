"""A subject is trained once, read from then on, and trained again when its files are damaged or its recipe changes."""

import multiprocessing
import os

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


def _load_and_tell(pipe) -> None:
    torch.set_num_threads(1)
    pipe.put(batches_of_a_load(Counting()))


def test_of_two_processes_only_one_trains() -> None:
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    pipe = context.Queue()
    workers = [context.Process(target=_load_and_tell, args=(pipe,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    counts = sorted(pipe.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert counts[0] < 30 < counts[1]


def test_a_recipe_that_does_not_add_up_is_refused() -> None:
    config = Counting().recipe().config
    with pytest.raises(AssayError, match="steps"):
        Recipe(config, WORDS, (Stage(5, 6, 6, 24),), Training(6), {})
    with pytest.raises(AssayError, match="words"):
        Recipe(config, WORDS[:3], (Stage(6, 6, 6, 24),), Training(6), {})
