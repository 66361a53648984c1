"""Linear attention against its definition as attention with a kernel."""

from __future__ import annotations

import pytest
import torch
from tests.parts.mixers.kit import X, heads_of, made, run

from assay.core.errors import AssayError
from assay.parts.mixers.linear_attention import FEATURES, LinearAttention


@pytest.mark.parametrize("feature", ["elu", "relu", "softmax", "identity"])
@torch.no_grad()
def test_it_is_attention_with_a_kernel_instead_of_the_exponential(feature):
    mixer = made(LinearAttention, feature=feature, normalise=feature != "identity")
    q, k, v = (heads_of(part(X)) for part in (mixer.q, mixer.k, mixer.v))
    scores = (FEATURES[feature](q) @ FEATURES[feature](k).mT).tril()
    over = 1 if feature == "identity" else scores.sum(-1, keepdim=True) + 1e-6
    wanted = mixer.out((scores @ v / over).transpose(1, 2).flatten(2))
    torch.testing.assert_close(run(mixer), wanted, rtol=0, atol=1e-9)


@torch.no_grad()
def test_equal_values_come_back_whatever_the_scores():
    mixer = made(LinearAttention, eps=0.0)
    mixer.v.weight.zero_()
    assert not run(mixer).any()
    mixer.v.forward = lambda x: torch.ones(*x.shape[:2], 16, dtype=x.dtype)
    torch.testing.assert_close(run(mixer), mixer.out(torch.ones_like(X)), rtol=0, atol=1e-12)


def test_bad_inputs_get_one_line():
    for options, why in (
        ({"heads": 3}, "width 16 does not divide into 3 heads: give head_dim"),
        ({"heads": 2, "feature": "cosine"}, "feature 'cosine'; choose elu, relu"),
        ({"heads": 2, "feature": "identity"}, "normalise=False"),
        ({"heads": 2, "chunk": 0}, "chunk=0"),
    ):
        with pytest.raises(AssayError, match=why):
            LinearAttention(16, **options)
