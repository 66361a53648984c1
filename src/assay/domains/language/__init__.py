"""Models of texts."""

from assay.domains.language.embeddings import embed

__all__ = ["embed"]
