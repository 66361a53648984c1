"""Random: uniform, independent between heads, layers and seeds, the same in any batch."""

import torch
from scipy import stats
from tests.contracts.tiny_models import some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.compression import Compression
from assay.efficiency.cache.random import Random


def test_draws_are_uniform_and_unrelated_between_heads_layers_and_seeds():
    store = fed(Random(), observed(4000, kv_heads=2))
    draws = torch.stack(
        [Random(seed).score(layer, store).view(2, 4000)[head] for seed in (0, 1) for layer in (0, 1) for head in (0, 1)]
    )
    assert all(stats.kstest(row.numpy(), "uniform").pvalue > 1e-3 for row in draws)
    correlation = draws.corrcoef().fill_diagonal_(0).abs().max()
    assert correlation < 4.5 / 4000**0.5
    neighbours = torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()]).corrcoef()[0, 1]
    assert abs(neighbours) < 4 / draws.numel() ** 0.5


def test_the_prompt_is_not_protected():
    model, held = tiny(), Compression(Random(sink=0, recent=0), 0.25)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(some_tokens(80), state)
    held.finish_prefill()
    assert state.layers[0].store.counts == [20, 20]
