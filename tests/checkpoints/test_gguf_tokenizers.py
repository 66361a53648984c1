"""Tokenizers of GGUF files against transformers' own conversion of the same file, on texts that their vocabularies were not made from."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from assay.checkpoints.gguf_file import GGUFFile
from assay.checkpoints.gguf_tokenizer import SPLITS, tokenizer_from_gguf

LEARNED = [
    "The ship's crew won't leave before 10:45, they're waiting for 1,234 letters; the letters haven't come. " * 3,
    "def area(width, height):\n    return width * height  # in metres\n\nprint(area(3, 4))\n",
    "Die Straßenbahn fährt über die Brücke, während wir auf der Straße stehen und über die Größe reden.",
    "Le garçon a déjà mangé la crème brûlée à côté de l'hôtel, où l'été dernier nous étions.",
    "Привет, как дела? Мы поехали на дачу и говорили о погоде, о погоде и о книгах.",
    "今天天气很好，我们去公园散步。明天我们再去公园看书。東京の天気は晴れです。",
    "مرحبا بالعالم، كيف حالك اليوم؟ اليوم جميل والكتاب جميل.",
    "नमस्ते दुनिया, आप कैसे हैं? दुनिया बड़ी है।",
]
FRESH = [
    "",
    " ",
    "a",
    "Hello world",
    "  two spaces in front, and three   within ",
    "They'll say it's 3.14159 or 20240131; WE'RE not sure.\r\n\r\n\tTabs\there",
    "for i in range(100):\n        if i % 3 == 0:\n            continue\n",
    "Größenwahn im Überfluß, naïve façade, smørrebrød, Łódź, Ελληνικά",
    "Кто там? Старая дорога, 42-й километр…",
    "我明天去公园。東京都庁 한국어 텍스트 ไทย",
    "سنذهب غداً إلى المكتبة",
    "दिल्ली में किताबें १२३",
    "emoji 🙂👩‍👩‍👧 and symbols ∑∞ ≠ €5, ½ ²",
    "CamelCaseWords andUPPERlower, snake_case, x=y+z; a/b//c \\\\ <tag attr='v'>",
    "trailing spaces   \n\n\n  ",
    "\u2581 the block character, and a no-break\u00a0space",
    "日本語とEnglishの混在text with 12345678901234567890 digits",
]


@functools.cache
def _byte_level() -> tuple[list[str], list[str]]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(LEARNED, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    return _trained(backend)


@functools.cache
def _sentencepiece() -> list[str]:
    """What SentencePiece would learn: pieces with the block character for spaces, the earliest merges first."""
    backend = Tokenizer(models.BPE(fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Replace("\u2581", " ")
    backend.train_from_iterator(LEARNED, trainers.BpeTrainer(vocab_size=500))
    return _trained(backend)[0]


def _trained(backend: Tokenizer) -> tuple[list[str], list[str]]:
    import json

    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(merge) for merge in model["merges"]]


def _write(path: Path, architecture: str, kind: str, tokens: list[str], types: list[int], **more) -> Path:
    writer = GGUFWriter(path, architecture)
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"):
        writer.add_uint32(f"{architecture}.{key}", 8)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_bos_token_id(more.pop("bos"))
    writer.add_eos_token_id(more.pop("eos"))
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _ours_and_theirs(path: Path):
    return tokenizer_from_gguf(GGUFFile(path).metadata), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def _same(ours, theirs, texts=FRESH) -> None:
    differing = [text for text in texts if ours.encode(text) != theirs.encode(text)]
    assert differing == [], [(ours.encode(text), theirs.encode(text)) for text in differing[:1]]
    assert len({len(ours.encode(text)) for text in texts}) > 5


def _byte_level_file(folder: Path, pre: str, architecture: str = "qwen2", **more) -> Path:
    tokens, merges = _byte_level()
    tokens = [*tokens, "<|endoftext|>", "<think>"]
    types, end = [1] * (len(tokens) - 2) + [3, 4], len(tokens) - 2
    more = {"bos": end, "eos": end, "add_bos_token": False, "token_merges": merges, "tokenizer_pre": pre} | more
    return _write(folder / "bytes.gguf", architecture, "gpt2", tokens, types, **more)


_DIGITS = ("smollm", "starcoder", "refact", "command-r")  # which transformers takes for GPT-2's


@pytest.mark.parametrize("pre", [pre for pre in SPLITS if pre not in _DIGITS])
def test_byte_level_kinds(pre, tmp_path):
    ours, theirs = _ours_and_theirs(_byte_level_file(tmp_path, pre))
    _same(ours, theirs, [*FRESH, "<think>the<|endoftext|> <think> Straße"])


@pytest.mark.parametrize("pre", _DIGITS)
def test_numbers_digit_by_digit(pre, tmp_path):
    ours = tokenizer_from_gguf(GGUFFile(_byte_level_file(tmp_path, pre)).metadata)
    tokens, merges = _byte_level()
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    theirs = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges]))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(split)
    assert [ours.encode(text) for text in FRESH] == [theirs.encode(text).ids for text in FRESH]


def test_every_way_of_splitting_that_transformers_knows_is_here():
    assert set(GGUF_PRE_TOKENIZER_SPLITS) <= set(SPLITS)


def test_byte_level_with_bos(tmp_path):
    ours, theirs = _ours_and_theirs(_byte_level_file(tmp_path, "llama-bpe", "llama", add_bos_token=True))
    assert ours.encode("a")[0] == ours.bos
    assert ours.encode("a") == theirs.encode("a")


def test_qwen_composes_letters_as_its_own_tokenizer_does_which_a_gguf_does_not_say(tmp_path):
    tokens, merges = _byte_level()
    ours = tokenizer_from_gguf(GGUFFile(_byte_level_file(tmp_path, "qwen2")).metadata)
    theirs = Qwen2Tokenizer({t: i for i, t in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in merges])
    apart = "u\u0308ber den Gro\u0308ßen"
    assert ours.encode(apart) == theirs.encode(apart) == ours.encode("über den Größen")


def _pieces(special: list[str]) -> tuple[list[str], list[int], list[float]]:
    learned = _sentencepiece()
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    types = [2 if token == "<unk>" else 3 for token in special] + [6] * 256 + [1] * len(learned)
    return tokens, types, [0.0] * (len(special) + 256) + [-float(i) for i in range(len(learned))]


def test_llama_kind(tmp_path):
    tokens, types, scores = _pieces(["<unk>", "<s>", "</s>"])
    path = _write(
        tmp_path / "pieces.gguf", "llama", "llama", tokens, types,
        bos=1, eos=2, unk_token_id=0, token_scores=scores, add_bos_token=True,
    )  # fmt: skip
    ours, theirs = _ours_and_theirs(path)
    _same(ours, theirs, [*FRESH, "one</s> two<s>three"])
    for text in FRESH:
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_gemma_kind(architecture, tmp_path):
    tokens, types, scores = _pieces(["<pad>", "<eos>", "<bos>", "<unk>"])
    spaces = [" " * n for n in range(2, 6)]  # runs of spaces are stored as they are, and by their own
    at = tokens.index("\u2581") + 1
    tokens[at:at], types[at:at], scores[at:at] = spaces, [4] * 4, [0.0] * 4
    path = _write(
        tmp_path / "gemma.gguf", architecture, "llama", tokens, types,
        bos=2, eos=1, unk_token_id=3, pad_token_id=0, token_scores=scores, add_bos_token=True, add_space_prefix=False,
    )  # fmt: skip
    _same(*_ours_and_theirs(path))
