"""MLA against its definition with keys and values of all heads written out, and what it stores."""

from __future__ import annotations

import torch

from assay.parts.mixers.mla import MLA


def made() -> MLA:
    torch.manual_seed(0)
    mixer = MLA(24, heads=4, head_dim=6, latent=10, rope_dim=4).double()
    for p in mixer.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return mixer


def written_out(mixer: MLA, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    latent = mixer.norm(mixer.down(x))
    k = torch.einsum("btl,hdl->bhtd", latent, mixer.key_up)
    v = torch.einsum("btl,hld->bhtd", latent, mixer.value_up)
    content, rotary = mixer.q(x).unflatten(-1, (4, -1)).transpose(1, 2).split([6, 4], -1)
    rotary, shared = mixer.position.rotate(rotary, mixer.rope(x)[:, None], positions)
    q, k = torch.cat([content, rotary], -1), torch.cat([k, shared.expand(-1, 4, -1, -1)], -1)
    z = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixer.out(z.transpose(1, 2).flatten(2))


def test_absorbed_projections_equal_keys_and_values_written_out_forward_and_backward():
    mixer, x = made(), torch.randn(2, 17, 24, dtype=torch.float64, requires_grad=True)
    positions = torch.arange(17).expand(2, -1)
    got, wanted = mixer(x, positions=positions)[0], written_out(mixer, x, positions)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)
    wrt = [x, *mixer.parameters()]
    for one, other in zip(
        torch.autograd.grad(got.square().sum(), wrt), torch.autograd.grad(wanted.square().sum(), wrt), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_token_costs_the_latent_and_the_shared_key_alone():
    mixer = made()
    state = mixer.start(1)
    mixer(torch.randn(1, 32, 24, dtype=torch.float64), state, positions=torch.arange(32)[None])
    held = sum(t.numel() for name, t in state.store.arrays.items() if name in ("k", "v"))
    assert held == 32 * (10 + 4)
    assert state.store.flat().v.shape == (32, 10)
