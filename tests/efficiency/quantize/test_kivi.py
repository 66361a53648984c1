"""KIVI: keys by channel over tokens, values by token over channels, the last tokens in full; bits counted from the tensors."""

import pytest
import torch

from assay.core.store import Store
from assay.efficiency.quantize.int2 import Int2
from assay.efficiency.quantize.kivi import Kivi


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def held(k: torch.Tensor, v: torch.Tensor, format) -> Store:
    store = Store(*k.shape[:2], format=format)
    store.append(k, v, positions=torch.arange(k.shape[2]).expand(len(k), -1))
    store.settle()
    return store


@pytest.mark.parametrize("bits", [2, 4])
def test_keys_and_values_of_a_store_are_what_the_formula_gives(bits):
    """Written out by loops over groups, channels and tokens, with nothing of the format's own code."""
    k, v, most = drawn(1, 2, 26, 8), drawn(1, 2, 26, 8, seed=1), 2**bits - 1
    store = held(k, v, Kivi(bits, group=8, recent=5))
    wanted_k, wanted_v = k[0].clone(), v[0].clone()

    def rounded(x: torch.Tensor) -> torch.Tensor:
        low, high = x.min().half().float(), x.max()
        scale = ((high - low) / most).half().float()
        return torch.tensor([min(max(round(float((one - low) / scale)), 0), most) for one in x]) * scale + low

    for head in range(2):
        for begin in (0, 8):  # 26 - 5 = 21 tokens are due: two whole groups
            for channel in range(8):
                wanted_k[head, begin : begin + 8, channel] = rounded(wanted_k[head, begin : begin + 8, channel])
            for token in range(begin, begin + 8):
                wanted_v[head, token] = rounded(wanted_v[head, token])
    flat = store.flat()
    torch.testing.assert_close(flat.k.view(2, 26, 8), wanted_k, rtol=0, atol=1e-6)
    torch.testing.assert_close(flat.v.view(2, 26, 8), wanted_v, rtol=0, atol=1e-6)


def test_a_channel_that_is_large_everywhere_costs_the_others_nothing():
    """Why keys are written by channel: what is true of real keys, made to be so here."""
    k = drawn(1, 1, 96, 32)
    k[..., 5] += 60
    others = [c for c in range(32) if c != 5]

    def off(format) -> float:
        store = held(k, k, format)
        return float((store.flat().k[:64, others] - k[0, 0, :64, others]).norm() / k[0, 0, :64, others].norm())

    assert off(Kivi(2, recent=32)) < 0.5 < off(Int2())


@pytest.mark.parametrize(("bits", "wanted"), [(2, 3), (4, 5)])
def test_bits_a_number_are_as_packed_scales_included(bits, wanted):
    """Of what is encoded: codes, and an offset and a scale of 16 bits for 32 numbers, in keys and in values."""
    tokens, dim = 32 * 20, 64
    store = held(drawn(1, 2, tokens, dim), drawn(1, 2, tokens, dim, seed=1), Kivi(bits, recent=0))
    parts = [t for name, t in store.arrays.items() if name[:2] in ("k.", "v.")]
    parts += [t for name, t in store.tables.items() if name.startswith("group.")]
    assert store.full == [0, 0]
    assert sum(t.untyped_storage().nbytes() for t in parts) * 8 / (2 * 2 * tokens * dim) == wanted


def test_what_is_full_stays_exact_in_half_precision_too():
    k = drawn(1, 1, 50, 32).bfloat16()
    store = held(k, k, Kivi(4, recent=10))
    flat = store.flat()
    assert flat.k.dtype == torch.bfloat16 and store.tables["full.k"].dtype == torch.bfloat16
    assert torch.equal(flat.k[-10:], k[0, 0, -10:]) and not torch.equal(flat.k[:32], k[0, 0, :32])
