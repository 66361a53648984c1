import subprocess
import sys

import numpy as np
import pytest

from assay.core.errors import AssayError
from assay.tasks.text import Corpus, code, corpus, english, read
from assay.tasks.words import CATEGORIES, NOUNS, draw_keys, draw_numbers


@pytest.mark.parametrize("make, words", [(english, 25_000), (code, 200_000)])
def test_there_is_enough_text_and_it_is_clean(make, words):
    text = make()
    assert len(text) > words
    assert "\t" not in text.text and "\n\n\n\n" not in text.text and not text.text[0].isspace()
    assert len(text.sentences) > words / 40


def test_english_is_prose_without_listings_or_repeated_paragraphs():
    paragraphs = english().text.split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs)
    assert not any(mark in english().text for mark in (">>>", "::=", "****", "===="))
    letters = sum(c.isalpha() or c.isspace() for c in english().text)
    assert letters > 0.9 * len(english().text)


def test_text_does_not_depend_on_the_path_or_the_folder(tmp_path):
    for name in ("argparse.py", "ast.py"):
        (tmp_path / name).write_text("raise SystemExit('not the real one')")
    script = (
        "import sys, assay.tasks.text as t; sys.path.insert(0, '.'); sys.path.reverse();"
        "print(t.english().checksum, t.code().checksum)"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [english().checksum, code().checksum]


@pytest.mark.parametrize(
    "text", [english(), Corpus("x", "  one\ntwo  three" + "é" * 40 + " end\n")], ids=["english", "odd"]
)
def test_passages_join_to_the_text_itself(text):
    cut = len(text) // 3
    assert text.passage(0, cut) + text.passage(cut, len(text) - cut) == text.text.rstrip()
    assert text.passage(len(text) - 1, 2) == text.passage(len(text) - 1, 1) + "\n\n" + text.passage(0, 1).lstrip()
    assert text.passage(0, 0) == ""


def test_sentences_begin_where_the_one_before_ends():
    text = Corpus("x", "First one. Second, e.g. this! Third?\n\nfourth. 5 is not one")
    assert [text.passage(k, 1).strip() for k in text.sentences] == ["First", "Second,", "Third?", "fourth."]


def test_unknown_text_is_named():
    with pytest.raises(AssayError, match="'french'.*english and code"):
        corpus("french")


@pytest.mark.parametrize(
    "content, why", [(b"", "empty"), (b" \n", "empty"), (b"caf\xe9", r"not UTF-8 text \(byte 3\)")]
)
def test_a_file_that_is_no_text_is_one_clear_line(tmp_path, content, why):
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(AssayError, match=why) as caught:
        read(path)
    assert "mine.txt" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(AssayError, match="no such file"):
        read(tmp_path / "none.txt")
    with pytest.raises(AssayError, match="cannot be read"):
        read(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "mine.txt").write_bytes("é".encode("utf-8-sig"))
    assert read(tmp_path / "mine.txt") == "é"


def test_words_are_not_used_twice():
    assert len(set(NOUNS)) == len(NOUNS)
    every = [word for words in CATEGORIES.values() for word in words]
    assert len(set(every)) == len(every)
    assert len({len(words) for words in CATEGORIES.values()}) == 1  # a balanced label is no hint


def test_keys_and_numbers_are_different_and_of_the_form_asked_for():
    rng = np.random.default_rng(0)
    for n in (1, len(NOUNS), 3000):
        keys = draw_keys(rng, n)
        assert len(set(keys)) == n and all(("-" in key) == (n > len(NOUNS)) for key in keys)
    with pytest.raises(AssayError, match="different keys"):
        draw_keys(rng, len(NOUNS) ** 2 + 1)
    numbers = draw_numbers(rng, 400, 3)
    assert len(set(numbers)) == 400 and all(len(number) == 3 and number[0] != "0" for number in numbers)
    assert len(draw_numbers(rng, 40, 1)) == 40
