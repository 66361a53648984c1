"""Tokenizers of folders and of GGUF metadata, chat templates, and what is saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from assay.checkpoints.gguf_tokenizer import tokenizer_from_gguf
from assay.checkpoints.tokenizer import Tokenizer, tokenizer_from_folder
from assay.core.errors import AssayError

_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
_MERGES = ["t h", "th e", "Ġ the", "i n", "1 2", "12 3"]
_BYTE_LEVEL = [*_ALPHABET, *(merge.replace(" ", "") for merge in _MERGES), "<|end|>", "<think>"]


def _metadata(kind, tokens, types, **more):
    given = {
        "model": kind,
        "tokens": tokens,
        "token_type": np.array(types),
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | more
    return {f"tokenizer.ggml.{key}": value for key, value in given.items()} | {"general.architecture": "llama"}


def _byte_level(pre):
    types = [1] * (len(_BYTE_LEVEL) - 2) + [3, 4]
    end = _BYTE_LEVEL.index("<|end|>")
    return tokenizer_from_gguf(
        _metadata("gpt2", _BYTE_LEVEL, types, pre=pre, merges=_MERGES, bos_token_id=end, eos_token_id=end)
    )


def _pieces(tokenizer, text):
    return [tokenizer.backend.id_to_token(i) for i in tokenizer.encode(text, bos=False)]


def _sentencepiece(**more):
    tokens = [
        "<s>",
        "</s>",
        "<unk>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "\u2581",
        "a",
        "b",
        "c",
        "ab",
        "bc",
        "\u2581a",
    ]
    types = [3, 3, 2] + [6] * 256 + [1] * 7
    scores = np.array([0.0] * 259 + [-9, -9, -9, -9, -2, -1, -3], np.float32)
    return tokenizer_from_gguf(_metadata("llama", tokens, types, scores=scores, unknown_token_id=2, **more))


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes():
    tokenizer = _sentencepiece(add_space_prefix=False)
    assert _pieces(tokenizer, "abc") == ["a", "bc"]
    assert _pieces(tokenizer, "é") == ["<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab é\n")) == "ab é\n"


def test_llama_2_puts_a_space_in_front_and_takes_it_back():
    tokenizer = _sentencepiece()
    assert _pieces(tokenizer, "a") == ["\u2581a"]
    assert tokenizer.encode("a")[0] == tokenizer.bos == 0
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"


@pytest.mark.parametrize(
    ("pre", "numbers"), [("gpt-2", ["123", "4"]), ("llama-bpe", ["123", "4"]), ("qwen2", ["1", "2", "3", "4"])]
)
def test_byte_level_kinds_split_numbers_differently(pre, numbers):
    tokenizer = _byte_level(pre)
    assert _pieces(tokenizer, "1234") == numbers
    assert _pieces(tokenizer, "in the") == ["in", "Ġthe"]
    assert _pieces(tokenizer, "<think>the<|end|>") == ["<think>", "the", "<|end|>"]
    text = "the 文 🙂\n\t ok"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_only_llama_3_puts_bos_in_front_unasked():
    assert [_byte_level(pre).adds_bos for pre in ("gpt-2", "qwen2", "llama-bpe")] == [False, False, True]


def test_kinds_that_are_not_supported_are_named():
    with pytest.raises(
        AssayError, match=r"tokenizer is gpt2/viking; supported are llama \(SentencePiece BPE\), gpt2/llama-bpe"
    ):
        _byte_level("viking")
    with pytest.raises(AssayError, match="holds no vocabulary"):
        tokenizer_from_gguf({"general.architecture": "llama"})


@pytest.mark.parametrize("make", [_sentencepiece, lambda: _byte_level("llama-bpe")])
def test_what_is_saved_is_the_same_here_and_in_transformers(make, tmp_path):
    tokenizer = make()
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save(tmp_path)
    again, theirs = tokenizer_from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in ("abc  the 1234", "é\n\n文", ""):
        assert again.encode(text) == tokenizer.encode(text) == theirs.encode(text)
    for name in ("bos", "eos", "pad", "adds_bos", "ends", "chat_template"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert theirs.bos_token_id == tokenizer.bos and theirs.chat_template == tokenizer.chat_template


def test_spans_are_characters_of_the_text():
    tokenizer = _byte_level("llama-bpe")
    text = "in the 文"
    ids, spans = tokenizer.spans(text)
    assert ids == tokenizer.encode(text) and spans[0] == (0, 0)
    assert [text[start:end].strip() for start, end in spans[1:]][:2] == ["in", "the"]
    assert tokenizer.spans(text, bos=False)[0] == ids[1:]


def _folder(tmp_path, **config):
    Backend(models.WordLevel({"<a>": 0, "<b>": 1, "x": 2, "?": 3}, unk_token="?")).save(
        str(tmp_path / "tokenizer.json")
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_special_tokens_of_a_folder_in_any_spelling(tmp_path):
    folder = _folder(tmp_path, bos_token={"content": "<a>"}, add_bos_token=True)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    tokenizer = tokenizer_from_folder(folder)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.ends) == (0, 1, None, (1, 2))
    assert tokenizer.encode("x") == [0, 2] and tokenizer.encode("x", bos=False) == [2]


def test_folders_without_a_usable_tokenizer(tmp_path):
    assert tokenizer_from_folder(tmp_path) is None
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(AssayError, match="tokenizer.model but no tokenizer.json"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(AssayError, match=r"tokenizer.json cannot be read"):
        tokenizer_from_folder(tmp_path)


def _chat(template):
    return Tokenizer(Backend(models.WordLevel({"<a>": 0})), bos=0, adds_bos=True, chat_template=template)


def test_chat_templates():
    turn = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    template = "{{ bos_token }}" + turn + "{% if add_generation_prompt %}[model]{% endif %}"
    messages = [{"role": "user", "content": "hi"}]
    assert _chat(template).apply_chat(messages) == "<a>[user] hi\n[model]"
    assert _chat(template).apply_chat(messages, answer=False) == "<a>[user] hi\n"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{% if %}", "cannot be used"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot be used"),
    ],
)
def test_chat_templates_that_cannot_be_used(template, why):
    with pytest.raises(AssayError, match=why):
        _chat(template).apply_chat([])
