"""Linear layers: every kernel gives the product, 16-bit storage stays near float32, and what is chosen depends on the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from assay.core import linear
from assay.core.linear import Embedding, Linear, narrowed, product

KERNELS = sorted({F.linear, *linear.FASTEST.values()}, key=lambda kernel: kernel.__name__)
SHAPES = [(1, 1), (64, 48), (33, 7), (2, 512)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("outputs, inputs", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_every_kernel_multiplies_one_row(kernel, outputs, inputs, dtype):
    torch.manual_seed(0)
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(1, 1, inputs).to(dtype)
    got, wanted = kernel(x, weight), x.double() @ weight.double().T
    assert got.shape == (1, 1, outputs) and got.dtype == dtype
    slack = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}[dtype]
    assert (got.double() - wanted).abs().max() <= slack * (x.double().abs() @ weight.double().abs().T).max()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@torch.no_grad()
def test_kernels_take_weights_that_do_not_lie_in_order(kernel):
    weight, x = torch.randn(12, 10).T, torch.randn(1, 12)
    torch.testing.assert_close(kernel(x, weight), x @ weight.T)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("hardware", [True, False])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_weights_stored_in_16_bits_answer_in_the_activations_dtype(rows, hardware, stored, monkeypatch):
    monkeypatch.setattr(linear, "fast_bfloat16", lambda: hardware)
    torch.manual_seed(0)
    weight, x = torch.randn(40, 96).to(stored), torch.randn(1, rows, 96)
    got, wanted = product(x, weight), x @ weight.float().T
    assert got.dtype == torch.float32
    assert (got - wanted).norm() < 0.01 * wanted.norm()
    if rows > 1 and not hardware:
        torch.testing.assert_close(got, wanted)  # computed in float32: only the weight was rounded


def test_only_what_is_multiplied_in_fewer_bits_is_narrowed(monkeypatch):
    monkeypatch.setattr(linear, "fast_bfloat16", lambda: False)
    one, many, weight = torch.ones(1, 4), torch.ones(2, 4), torch.ones(3, 4, dtype=torch.bfloat16)
    assert narrowed(one, weight).dtype == torch.bfloat16 and narrowed(many, weight) is many
    monkeypatch.setattr(linear, "fast_bfloat16", lambda: True)
    assert narrowed(many, weight).dtype == torch.bfloat16
    assert narrowed(many, weight.float()) is many and narrowed(many, None) is many


def test_gradients_flow_through_one_row():
    layer, x = Linear(6, 4, bias=True), torch.randn(1, 6, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.detach().sum(0, keepdim=True))
    torch.testing.assert_close(layer.bias.grad, torch.ones(4))


@pytest.mark.parametrize("stored, answered", [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_embeddings_answer_in_float32_at_least(stored, answered):
    table = Embedding(5, 3).to(getattr(torch, stored))
    rows = table(torch.tensor([[4, 0]]))
    assert rows.dtype == getattr(torch, answered)
    torch.testing.assert_close(rows[0, 0].double(), table.weight[4].double())


def test_a_machine_held_to_avx2_multiplies_bfloat16_in_float32():
    code = "from assay.core.linear import fast_bfloat16, kernel; import torch; print(fast_bfloat16(), kernel(torch.float32).__name__)"
    asked = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("not such a machine")
    said = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", linear.FASTEST["AVX2", torch.float32].__name__]
