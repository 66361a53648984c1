"""CapKV: leverage of the keys of each head alone."""

import pytest
import torch
from tests.efficiency.cache.stores import fed, observed, order

from assay.core.errors import AssayError
from assay.efficiency.cache.capkv import CapKV


def test_scores_are_the_leverage_of_each_heads_keys():
    seen = observed(40)
    scores = CapKV(ridge=0.1).score(0, fed(CapKV(), seen)).view(2, 40)
    for head in range(2):
        keys = seen.k[0, head]
        gram = keys.mT @ keys
        inverse = (gram + 0.1 * gram.trace() / 8 * torch.eye(8)).inverse()
        torch.testing.assert_close(scores[head], torch.einsum("ti,ij,tj->t", keys, inverse, keys))


def test_the_only_key_in_its_direction_comes_first_and_copies_of_one_come_last():
    seen = observed(30, kv_heads=1)
    keys = torch.zeros_like(seen.k)
    keys[..., 0] = 1.0
    keys[:, :, 10, :2] = torch.tensor([0.0, 1.0], dtype=keys.dtype)
    seen.k.copy_(keys)
    scores = CapKV().score(0, fed(CapKV(), seen))
    assert order(scores)[0] == 10 and scores[0] < 0.1 < scores[10]


def test_bad_input():
    with pytest.raises(AssayError, match="ridge=0 must be positive"):
        CapKV(ridge=0)
