"""How a model is trained: batches as functions of the step, one readable loop, a learning-rate schedule, initialisation."""

from assay.training.batch import Batch, masked_cross_entropy
from assay.training.induction import look_back, plant_induction
from assay.training.initialise import initialise
from assay.training.loop import History, Training, train
from assay.training.schedule import learning_rate_at

__all__ = [
    "Batch",
    "History",
    "Training",
    "initialise",
    "learning_rate_at",
    "look_back",
    "masked_cross_entropy",
    "plant_induction",
    "train",
]
