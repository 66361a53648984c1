"""What is special to softmax attention: its limits, its exact cost, which path it takes, its bad inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from assay.core import attention
from assay.core.errors import AssayError
from assay.core.sites import Tap
from assay.parts.mixers.softmax import SoftmaxAttention


def make(seed=0, **options):
    torch.manual_seed(seed)
    return SoftmaxAttention(16, **{"heads": 4} | options).double()


def run(mixer, x, state=None):
    begin = 0 if state is None else int(state.seen[0])
    return mixer(x, state, positions=torch.arange(begin, begin + x.shape[1]).expand(len(x), -1))[0]


X = torch.randn(2, 30, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_plain_heads_are_torchs_multi_head_attention():
    mixer = make(bias=True)
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([mixer.q.weight, mixer.k.weight, mixer.v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([mixer.q.bias, mixer.k.bias, mixer.v.bias]))
        theirs.out_proj.load_state_dict(mixer.out.state_dict())
    wanted, _ = theirs(X, X, X, attn_mask=torch.ones(30, 30).triu(1).bool(), need_weights=False)
    torch.testing.assert_close(run(mixer, X), wanted)


def test_shared_key_value_heads_are_repeated_ones():
    grouped, full = make(kv_heads=2), make()
    full.q.load_state_dict(grouped.q.state_dict())
    full.out.load_state_dict(grouped.out.state_dict())
    with torch.no_grad():
        for mine, theirs in ((full.k, grouped.k), (full.v, grouped.v)):
            mine.weight.copy_(theirs.weight.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1))
    torch.testing.assert_close(run(full, X), run(grouped, X))


def test_limits_of_window_and_softcap():
    plain = make()
    torch.testing.assert_close(run(make(window=30), X), run(plain, X))
    torch.testing.assert_close(run(make(softcap=1e6), X), run(plain, X))
    alone = plain.out(plain.v(X))
    torch.testing.assert_close(run(make(window=1), X), alone)
    assert not torch.allclose(run(make(softcap=0.01), X), run(plain, X), atol=1e-8)


def test_out_bias_may_differ_from_the_others():
    assert make(bias=True, out_bias=False).out.bias is None
    assert make(bias=False, out_bias=True).out.bias is not None
    assert make(bias=False, out_bias=True).q.bias is None


@pytest.mark.parametrize("window", [None, 9])
@torch.no_grad()
def test_cost_is_what_decoding_multiplies(window):
    mixer = make(window=window, kv_heads=2)
    state = mixer.start(2)
    with FlopCounterMode(display=False) as counter:
        for t in range(30):
            run(mixer, X[:, t : t + 1], state)
    fused = 4 * 4 * 4  # the first token's only pair is read by a fused kernel, which torch does not count
    assert counter.get_total_flops() == 2 * (mixer.cost(30).flops - fused)


@torch.no_grad()
def test_decoding_needs_no_mask_until_a_window_has_gaps(monkeypatch):
    masked, dense = [], attention.attend_dense
    monkeypatch.setattr(attention, "attend_dense", lambda *a, **o: masked.append(1) or dense(*a, **o))
    for window in (None, 9):
        mixer = make(window=window)
        state = mixer.start(2)
        run(mixer, X[:, :20], state)
        run(mixer, X[:, 20:21], state)
        assert not masked
    store = state.store
    store.keep((store.flat().positions % 2 == 0).nonzero()[:, 0])
    run(mixer, X[:, 21:22], state)
    assert masked


@pytest.mark.parametrize("heads", [1, 4])
@torch.no_grad()
def test_a_valid_nan_is_not_hidden_when_somebody_listens(heads):
    mixer, x = make(heads=heads), X.clone()
    x[0, 5] = torch.nan
    mixer.tap = Tap("", {"pattern": [lambda _, pattern: pattern]})
    y = run(mixer, x)
    assert y[0, 5:].isnan().all()
    assert y[1].isfinite().all()


def test_a_user_without_heads_gets_one_line():
    for options, why in (
        ({"heads": 3}, "width 16 does not divide into 3 heads: give head_dim"),
        ({"heads": 4, "kv_heads": 3}, "4 heads cannot share 3 key-value heads evenly"),
        ({"heads": 4, "window": -2}, "window=-2"),
    ):
        with pytest.raises(AssayError, match=why):
            SoftmaxAttention(16, **options)


@pytest.mark.parametrize("group", [1, 2])
def test_fused_and_explicit_paths_agree_with_torchs_own(group):
    mixer = make(kv_heads=4 // group)
    q, k, v = (lin(X).unflatten(-1, (-1, 4)).transpose(1, 2) for lin in (mixer.q, mixer.k, mixer.v))
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)
    torch.testing.assert_close(run(mixer, X), mixer.out(z.transpose(1, 2).flatten(2)))
