"""Small models trained here: deterministic, kept in the user's cache folder, named like any other model."""

from assay.subjects.recipe import Recipe, Stage
from assay.subjects.subject import Subject
from assay.subjects.words import WordTokenizer

__all__ = ["Recipe", "Stage", "Subject", "WordTokenizer"]
