"""Vectors of any axes go back where they came from, and what is collected is what passes."""

from __future__ import annotations

import pytest
import torch
from tests.core.tiny import tiny, tokens

from assay.analysis.inspect import collect, restored, vectors
from assay.core.errors import AssayError
from assay.core.sites import record


def test_any_axes_make_vectors_and_go_back():
    value = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for axes, shape in [((-1,), (24, 5)), ((-2, -1), (6, 20)), ((1, 3), (8, 15)), ((2,), (30, 4))]:
        rows = vectors(value, axes)
        assert rows.shape == shape
        assert torch.equal(restored(rows, value, axes), value)
    short = value.bfloat16()
    assert restored(vectors(short).double(), short).dtype == torch.bfloat16
    assert torch.equal(vectors(value, (1, 3))[1], value[0, :, 1].flatten())
    for axes in [(), (0,), (-4, 1), (1, 1), (1, -3), (4,)]:
        with pytest.raises(AssayError, match="make no vectors"):
            vectors(value, axes)


@torch.no_grad()
def test_what_is_collected_is_what_passes_whole_or_in_pieces():
    model, texts = tiny(), [tokens(3, 10), tokens(2, 7, seed=4)]
    whole = collect(model, "blocks.1.hook_resid_post", texts)
    with record(model, "blocks.1.resid_post") as tape:
        for text in texts:
            model(text)
    assert torch.equal(whole, torch.cat([v.flatten(0, 1) for v in tape.all("blocks.1.resid_post")]))
    in_pieces = collect(model, "blocks.1.resid_post", texts, piece=4)
    torch.testing.assert_close(in_pieces.sort(0).values, whole.sort(0).values, rtol=0, atol=1e-9)
    assert collect(model, "logits", texts, most=11).shape == (11, 31)
