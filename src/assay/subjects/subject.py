"""The interface of subjects: a recipe and its batches; training and keeping are the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import torch
from rich.console import Console

from assay.core.transformer import Transformer
from assay.subjects import cache
from assay.subjects.recipe import Recipe
from assay.subjects.words import WordTokenizer
from assay.training import Batch, History, initialise, plant_induction, train

THREADS = 1  # sums are cut by threads, so their number decides the last bits of the weights; small models gain little from more


class Subject(ABC):
    """A small model that is trained when it is first loaded and read from the cache from then on."""

    name: str

    @abstractmethod
    def recipe(self) -> Recipe: ...

    @abstractmethod
    def batch_at(self, step: int) -> Batch:
        """The batch of one step: a function of the recipe and the step alone."""

    @property
    def folder(self) -> Path:
        """Where the trained model is kept. A changed recipe is another folder."""
        recipe = self.recipe()
        ends = {0, recipe.training.steps - 1}
        return cache.folder_of(self.name, recipe.fingerprint([self.batch_at(step).tokens for step in sorted(ends)]))

    @property
    def cached(self) -> bool:
        """Whether loading it needs no training."""
        return cache.read(self.folder) is not None

    def load(self, *, device: str | torch.device = "cpu", dtype: str | torch.dtype = "float32") -> Transformer:
        """The trained model with `tokenizer` and `name`, trained first where the cache does not hold it undamaged."""
        folder = self.folder
        with torch.random.fork_rng(devices=[]):  # whoever draws next must not see whether this was trained or read
            model = cache.read(folder)
            if model is None:
                with cache.locked(folder):
                    model = cache.read(folder) or self._make(folder)
        model.name, model.tokenizer = self.name, WordTokenizer(self.recipe().words)
        kind = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
        return model.to(device=device, dtype=kind).eval()

    def _make(self, folder: Path) -> Transformer:
        damaged = folder.exists()
        say = Console(stderr=True).print
        say(f"{self.name}: {'what the cache holds is damaged; training it again' if damaged else 'training it once'}")
        model, history = self.train()
        recipe = self.recipe()
        made = {
            "name": self.name,
            "seed": recipe.seed,
            "steps": recipe.training.steps,
            "seconds": round(history.seconds, 1),
            "loss": history.loss[-1],
            "accuracy": history.accuracy[-1],
            "torch": torch.__version__,
        }
        cache.write(folder, model, WordTokenizer(recipe.words), made)
        return model

    def train(self, log: Path | None = None) -> tuple[Transformer, History]:
        """Train anew, whatever the cache holds, and keep nothing."""
        recipe = self.recipe()
        model = initialise(Transformer(recipe.config), recipe.seed)
        if recipe.induction:
            plant_induction(model, recipe.seed, **recipe.induction)
        threads = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        try:
            return model, train(model, self.batch_at, recipe.training, says=self.name, log=log)
        finally:
            torch.set_num_threads(threads)
