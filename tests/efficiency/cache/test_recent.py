"""Recent keeps sinks and the last tokens, nothing else."""

import torch
from tests.contracts.tiny_models import some_tokens, tiny

from assay.core.compression import Compression
from assay.efficiency.cache.recent import Recent


def test_sinks_and_a_window_stay_at_every_step():
    model, tokens = tiny(), some_tokens(80)
    held = Compression(Recent(sink=3, recent=5), "20tok", slack=0)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(tokens[:, :60], state)
        held.finish_prefill()
        for now in range(60, 80):
            kept = [*range(3), *range(now - 17, now)]
            assert state.layers[0].store.flat().positions.tolist() == kept * 2
            model(tokens[:, now : now + 1], state)
            held.hold()
