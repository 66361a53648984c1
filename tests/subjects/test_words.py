"""Words and ids go back and forth, spans point at the words, and the files are read by the tokenizers library."""

import pytest

from assay.core.errors import AssayError
from assay.subjects import WordTokenizer

WORDS = ("?", "k0", "k1", "v0")


def test_there_and_back() -> None:
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.encode("k0 v0 ? k1") == [1, 3, 0, 2]
    assert tokenizer.decode([1, 3, 0, 2]) == "k0 v0 ? k1"
    assert tokenizer.encode("k0 v0") + tokenizer.encode(" ? k1", bos=False) == tokenizer.encode("k0 v0 ? k1")


def test_spans_are_the_words_characters() -> None:
    text = "  k0 v0\n? k1"
    ids, spans = WordTokenizer(WORDS).spans(text)
    assert [text[a:b] for a, b in spans] == ["k0", "v0", "?", "k1"]
    assert len(ids) == len(spans)


def test_an_unknown_word_names_its_neighbours() -> None:
    with pytest.raises(AssayError, match=r"'k9' is not among the 4 words .*k[01]"):
        WordTokenizer(WORDS).encode("k0 k9")


def test_the_tokenizers_library_reads_what_is_saved(tmp_path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    WordTokenizer(WORDS).save(tmp_path)
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert other.encode("k0 v0 ? k1").ids == [1, 3, 0, 2]
