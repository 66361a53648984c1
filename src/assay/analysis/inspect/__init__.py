"""Instruments: what passes a site of a running model, measured, taken apart and put back."""

from assay.analysis.inspect.common import collect, restored, vectors
from assay.analysis.inspect.controls import gaussian_like, random_directions
from assay.analysis.inspect.evaluation import Evaluation, evaluate, explained_variance
from assay.analysis.inspect.sae import SAE, train_sae

__all__ = [
    "SAE",
    "Evaluation",
    "collect",
    "evaluate",
    "explained_variance",
    "gaussian_like",
    "random_directions",
    "restored",
    "train_sae",
    "vectors",
]
