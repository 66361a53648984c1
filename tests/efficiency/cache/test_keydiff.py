"""KeyDiff against the formula written out, head by head."""

import torch
from tests.efficiency.cache.stores import fed, observed, order

from assay.efficiency.cache.keydiff import KeyDiff


def test_the_score_is_minus_the_cosine_to_the_mean_direction():
    seen = observed(40, batch=2, kv_heads=3)
    policy = KeyDiff()
    scores = policy.score(0, fed(policy, seen)).view(2, 3, 40)
    for b in range(2):
        for h in range(3):
            keys = seen.k[b, h]
            anchor = torch.stack([key / key.norm() for key in keys]).mean(0)
            naive = torch.stack([-(key @ anchor) / key.norm() / anchor.norm() for key in keys])
            torch.testing.assert_close(scores[b, h], naive)


def test_a_key_unlike_the_others_comes_first():
    seen = observed(20, kv_heads=1)
    seen.k.copy_(torch.ones(8) + 0.01 * seen.k)
    seen.k[0, 0, 13] = torch.tensor([-1.0, 1, -1, 1, -1, 1, -1, 1])
    policy = KeyDiff()
    assert order(policy.score(0, fed(policy, seen)))[0] == 13
