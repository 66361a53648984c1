"""Knorm keeps the shortest keys."""

import torch
from tests.efficiency.cache.stores import fed, observed

from assay.efficiency.cache.knorm import Knorm


def test_short_keys_score_high():
    seen = observed(30)
    policy = Knorm()
    store = fed(policy, seen)
    lengths = (seen.k**2).sum(-1).sqrt().flatten()
    torch.testing.assert_close(policy.score(0, store), -lengths.float())


def test_keys_that_differ_in_direction_alone_tie_and_the_earlier_stays():
    seen = observed(8, kv_heads=1)
    seen.k.copy_(torch.nn.functional.normalize(seen.k, dim=-1) * 3)
    policy = Knorm()
    store = fed(policy, seen)
    assert policy.keep(0, store, policy.score(0, store), torch.tensor([3])).tolist() == [0, 1, 2]
