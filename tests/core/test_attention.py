"""Every path of attention against a masked softmax by hand, forward and gradient, at odd lengths."""

import pytest
import torch

from assay.core import attention
from assay.core.store import Pages, Store

LENGTHS = [1, 2, 17, 127]


def qkv(batch, heads, kv_heads, tokens, dim=5, dim_v=7, keys=None):
    draw = torch.Generator().manual_seed(tokens)
    keys = keys or tokens
    shapes = (batch, heads, tokens, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim_v)
    return [torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for s in shapes]


def naive(q, k, v, mask, scale):
    """`mask`: batch kv_heads queries keys. Rows that read nothing are zero, their log-sum-exp -inf."""
    group = q.shape[1] // k.shape[1]
    k, v, mask = (t.repeat_interleave(group, 1) for t in (k, v, mask))
    scores = (q @ k.mT * scale).masked_fill(~mask, -torch.inf)
    blind = ~mask.any(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    return weights @ v, scores.logsumexp(-1)


def band(tokens, window):
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return (distance >= 0) & (distance < (window or tokens))


def same_with_gradients(got, wanted, inputs):
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad((got * weights).sum(), inputs, retain_graph=True)
    theirs = torch.autograd.grad((wanted * weights).sum(), inputs, retain_graph=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("window", [None, 1, 2, 16, 17, 200])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_a_whole_sequence_in_bands(tokens, window):
    q, k, v = qkv(2, 4, 2, tokens)
    mask = band(tokens, window).expand(2, 2, -1, -1)
    same_with_gradients(
        attention.attend_causal(q, k, v, 0.3, window), naive(q, k, v, mask, 0.3)[0], [q, k, v] if tokens > 1 else [v]
    )


def uneven_pages(k, v, counts, page):
    """A store of these keys, each owner with its own count of them, and the mask of what each holds."""
    store = Store(k.shape[0], k.shape[1], page=page)
    store.append(k, v, positions=torch.arange(k.shape[2]).expand(k.shape[0], -1))
    flat, kept = store.flat(), []
    for owner, count in enumerate(counts):
        mine = (flat.owner == owner).nonzero()[:, 0]
        kept.append(mine[torch.randperm(len(mine), generator=torch.Generator().manual_seed(owner))[:count]])
    kept = torch.cat(kept)
    held = torch.zeros(k.shape[:3], dtype=torch.bool)
    held.view(-1, k.shape[2])[flat.owner[kept], flat.positions[kept].long()] = True
    store.keep(kept)
    return store, held


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("counts", [(40, 1, 0, 13), (40, 40, 40, 40), (3, 0, 0, 0)])
def test_pages_of_any_layout_and_their_log_sum_exp(tokens, window, counts):
    q, k, v = qkv(2, 4, 2, tokens, keys=40)
    store, held = uneven_pages(k, v, counts, page=4)
    at = torch.arange(tokens).expand(2, -1) + torch.tensor([[0], [20]])
    mask = attention.visible(at, torch.arange(40).expand(2, -1), window)[:, None] & held[:, :, None]
    out, lse = attention.attend_pages(q, store.pages(), at, scale=0.3, window=window, kv_heads=2)
    wanted, wanted_lse = naive(q, k, v, mask, 0.3)
    same_with_gradients(out, wanted, [q, k, v])
    torch.testing.assert_close(lse, wanted_lse, rtol=0, atol=1e-10)
    dense = attention.attend_dense(q, store.padded(), at, scale=0.3, window=window, heads_alike=False)
    same_with_gradients(dense, wanted, [q, k, v])


def test_log_sum_exps_merge_two_halves_into_the_whole_with_gradients():
    q, k, v = qkv(1, 2, 1, 5, keys=30)
    at, places = torch.full((1, 5), 29), torch.arange(30, dtype=torch.int32)

    def read(part):
        pages = Pages(k[0, :, part], v[0, :, part], places[None, part], torch.tensor([0]))
        return attention.attend_pages(q, pages, at, scale=1.0, window=None, kv_heads=1)

    halves = [read(slice(0, 11)), read(slice(11, 30))]
    total = torch.logaddexp(halves[0][1], halves[1][1])
    merged = sum(out * (lse - total).exp()[..., None] for out, lse in halves)
    same_with_gradients(merged, read(slice(0, 30))[0], [q, k, v])


@pytest.mark.parametrize("path", ["pages", "dense", "explicit"])
def test_rows_that_read_nothing_are_zero_and_have_zero_gradients(path):
    q, k, v = qkv(1, 2, 1, 3, keys=4)
    pages = Pages(k[0], v[0], torch.tensor([[5, 6, -1, -1]], dtype=torch.int32), torch.tensor([0]))
    at = torch.tensor([[4, 5, 6]])  # the first query is earlier than every key
    if path == "pages":
        out, lse = attention.attend_pages(q, pages, at, scale=1.0, window=None, kv_heads=1)
        assert lse[0, :, 0].tolist() == [-torch.inf] * 2
    elif path == "dense":
        out = attention.attend_dense(q, pages, at, scale=1.0, window=None, heads_alike=True)
    else:
        scores, values = attention.scores_of(q, pages, at, scale=1.0, window=None, softcap=None)
        out = attention.softmax_or_zero(scores) @ values
    assert not out[:, :, 0].any()
    assert out[:, :, 1:].abs().min() > 0
    for into in torch.autograd.grad(out.square().sum(), [q, k, v]):
        assert into.isfinite().all()
        if into.shape == q.shape:
            assert not into[:, :, 0].any()


def test_scores_beyond_float_range_do_not_overflow():
    q, k, v = (t.detach() * 1e3 for t in qkv(1, 1, 1, 3, keys=6))
    pages = Pages(k[0].view(3, 2, 5), v[0].view(3, 2, 7), torch.zeros(3, 2, dtype=torch.int32), torch.zeros(3).long())
    out, _ = attention.attend_pages(q, pages, torch.zeros(1, 3).long(), scale=10.0, window=None, kv_heads=1)
    wanted, _ = naive(q, k, v, torch.ones(1, 1, 3, 6, dtype=torch.bool), 10.0)
    torch.testing.assert_close(out, wanted)


def test_a_bias_is_added_after_the_softcap():
    q, k, v = qkv(1, 2, 1, 3)
    pages = Pages(k[0], v[0], torch.arange(3, dtype=torch.int32)[None], torch.tensor([0]))
    scores, _ = attention.scores_of(
        q,
        pages,
        torch.arange(3)[None],
        scale=0.5,
        window=2,
        softcap=2.0,
        bias=lambda at, keys: -(at[:, None, :, None] - keys[:, :, None]),
    )
    capped = 2.0 * (q @ k.mT * 0.5 / 2.0).tanh()
    distance = torch.arange(3)[:, None] - torch.arange(3)
    wanted = (capped - distance).masked_fill(~band(3, 2), -torch.inf)
    torch.testing.assert_close(scores, wanted)
