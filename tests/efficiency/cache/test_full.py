"""Full keeps everything and asks for nothing."""

import pytest
import torch
from tests.contracts.tiny_models import some_tokens, tiny

from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache.full import Full


def test_nothing_is_dropped_or_remembered():
    model, held = tiny(), Compression(Full(), 1)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(some_tokens(50), state)
    held.finish_prefill()
    held.hold()
    assert state.layers[0].store.counts == [50, 50]
    assert not state.layers[0].store.remembered() and not state.layers[0].observers


def test_a_smaller_budget_is_refused():
    with pytest.raises(AssayError, match=r"keeps everything cannot hold a budget of 0\.9"):
        Compression(Full(), 0.9)
