"""The compiled kernels: the right products and norms at any shape, and a way on where they cannot run."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import assay.core
from assay.core import linear
from assay.core.linear import Linear, product

one_row = pytest.importorskip("assay.core.one_row", reason="numba is not installed (the extra `fast`)")

SHAPES = [(1, 1), (64, 48), (33, 7), (2, 512), (1000, 129)]


@pytest.mark.parametrize("outputs, inputs", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_row_times_a_weight(outputs, inputs, dtype):
    torch.manual_seed(0)
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(1, 1, inputs)
    got, wanted = one_row.product(x, weight), x.double() @ weight.double().T
    assert got.shape == (1, 1, outputs) and got.dtype == torch.float32
    assert (got.double() - wanted).abs().max() <= 1e-5 * (x.double().abs() @ weight.double().abs().T).max()


@pytest.mark.parametrize("rows, width", [((1, 1), 640), ((1, 4, 1), 256), ((3,), 7), ((2, 2), 1)])
@torch.no_grad()
def test_rms(rows, width):
    torch.manual_seed(0)
    x, weight = torch.randn(*rows, width), torch.randn(width)
    wanted = F.rms_norm(x.double(), (width,), weight.double(), 1e-3)
    torch.testing.assert_close(one_row.rms(x, weight, 1e-3).double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(one_row.rms(torch.zeros(2, width), weight, 1e-6), torch.zeros(2, width))


@torch.no_grad()
def test_rows_that_do_not_lie_in_order():
    torch.manual_seed(0)
    x, weight = torch.randn(8, 2).T[:1], torch.randn(5, 8)
    torch.testing.assert_close(product(x, weight), x @ weight.T)
    torch.testing.assert_close(product(x, weight.T.contiguous().T), x @ weight.T)
    wide = torch.randn(4, 6, 8)[:, ::2]
    torch.testing.assert_close(one_row.rms(wide, torch.ones(8), 0.0), F.rms_norm(wide, (8,), eps=0.0))


def test_they_are_used_for_one_row_without_gradients_only(monkeypatch):
    asked = []
    monkeypatch.setattr(one_row, "product", lambda x, weight: asked.append(x.shape) or x @ weight.float().T)
    layer = Linear(6, 4)
    x = torch.randn(1, 1, 6)
    layer(x)  # gradients
    with torch.no_grad():
        layer(torch.randn(1, 2, 6))
        layer.double()(x.double())
        assert not asked
        layer.float()(x)
        layer.bfloat16()(x)
    assert len(asked) == 2


@torch.no_grad()
def test_short_weights_are_multiplied_with_a_row_that_is_not_rounded():
    torch.manual_seed(0)
    layer, x = Linear(64, 64), torch.randn(1, 1, 64)
    layer.bfloat16()
    exact = x.double() @ layer.weight.double().T
    assert (layer(x).double() - exact).abs().max() < 1e-5


def test_threads_follow_torch():
    before = torch.get_num_threads()
    weight, x = torch.randn(64, 8), torch.randn(1, 8)
    try:
        for count in (1, before):
            torch.set_num_threads(count)
            with torch.no_grad():
                torch.testing.assert_close(one_row.product(x, weight), x @ weight.T)
    finally:
        torch.set_num_threads(before)


def test_a_forked_child_goes_on_with_torch():
    """OpenMP's threads do not survive a fork: a compiled kernel would end the child."""
    code = (
        "import os, torch\n"
        "from assay.core import linear\n"
        "torch.set_grad_enabled(False)\n"
        "w, x = torch.randn(4, 3), torch.randn(1, 3)\n"
        "linear.product(x, w)\n"
        "assert linear.compiled() is not None\n"
        "if child := os.fork():\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    raise SystemExit(os.waitstatus_to_exitcode(status))\n"
        "assert linear.compiled() is None\n"
        "torch.set_num_threads(1)\n"
        "assert torch.allclose(linear.product(x, w), x @ w.T)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_numba_torch_multiplies(monkeypatch):
    monkeypatch.setitem(sys.modules, "assay.core.one_row", None)
    monkeypatch.delattr(assay.core, "one_row")
    linear.compiled.cache_clear()
    try:
        assert linear.compiled() is None
        with torch.no_grad():
            weight, x = torch.randn(5, 8), torch.randn(1, 8)
            torch.testing.assert_close(product(x, weight), x @ weight.T)
    finally:
        linear.compiled.cache_clear()
