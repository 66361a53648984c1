"""A tokenizer over a closed vocabulary: one word, one token, words separated by single spaces."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError


class WordTokenizer:
    """Ids are places in `words`. There are no special tokens: a text is its words and nothing else."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    adds_bos = False
    ends: tuple[int, ...] = ()
    chat_template: str | None = None

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self.ids = {word: index for index, word in enumerate(self.words)}

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """Token ids; `bos` changes nothing. Raises AssayError for a word outside the vocabulary."""
        return self.spans(text, bos)[0]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[index] for index in ids)

    def spans(self, text: str, bos: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids and, for each, the characters [start, end) of `text` it covers."""
        found = list(re.finditer(r"\S+", text))
        return [self._id(match[0]) for match in found], [match.span() for match in found]

    def _id(self, word: str) -> int:
        if word not in self.ids:
            like = difflib.get_close_matches(word, self.words, 3, 0.0)
            raise AssayError(
                f"{word!r} is not among the {len(self.words)} words of this model (nearest: {', '.join(like)});"
                " give it a task over a closed vocabulary, such as recall or restated"
            )
        return self.ids[word]

    def apply_chat(self, messages: list[dict[str, str]], *, answer: bool = True) -> str:
        raise AssayError("a model of words has no chat template; give it plain text")

    def save(self, folder: Path) -> None:
        """Write tokenizer.json in the layout of the `tokenizers` library, and tokenizer_config.json."""
        table: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": self.ids, "unk_token": ""},
        }
        (folder / "tokenizer.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
