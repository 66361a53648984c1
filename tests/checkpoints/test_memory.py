"""What memory is free."""

from __future__ import annotations

import pytest
import torch

from assay.checkpoints import memory
from assay.core.errors import AssayError


def test_the_narrower_of_machine_and_container_counts(monkeypatch):
    monkeypatch.setattr(memory, "_linux", lambda: 500)
    monkeypatch.setattr(memory, "_container", lambda: 300)
    assert memory.free_bytes(torch.device("cpu")) == 300
    monkeypatch.setattr(memory, "_container", lambda: None)
    assert memory.free_bytes(torch.device("cpu")) == 500


def test_without_either_the_machine_is_asked(monkeypatch):
    monkeypatch.setattr(memory, "_linux", lambda: None)
    monkeypatch.setattr(memory, "_container", lambda: None)
    assert memory.free_bytes(torch.device("cpu")) > 1 << 28


def test_the_message_gives_both_sizes_and_a_mend(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2 << 30)
    memory.check_fits("m", 2 << 30, torch.device("cpu"), torch.float32)
    with pytest.raises(
        AssayError, match="m takes 3.0 GiB in float32, and cpu has 2.0 GiB free; use dtype='bfloat16' or"
    ):
        memory.check_fits("m", 3 << 30, torch.device("cpu"), torch.float32)
    with pytest.raises(AssayError, match="free; use a smaller model"):
        memory.check_fits("m", 3 << 30, torch.device("cpu"), torch.bfloat16)
