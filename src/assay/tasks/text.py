"""Real text that every Python carries: English from the language reference, code from the library's own source.

The text depends on the Python version alone, never on `sys.path` or the working folder; `Corpus.checksum` says which
text it was.
"""

import functools
import hashlib
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from assay.core.errors import AssayError

# Pieces carry the space before them, so any run of pieces is the text itself. Long ones are cut: some scripts have no
# spaces.
_PIECE = re.compile(r"\s*\S{1,16}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'])|\n\s*\n")
_MODULES = (
    "argparse ast asyncio/base_events asyncio/streams asyncio/tasks bisect calendar cmd codecs collections/__init__ "
    "concurrent/futures/thread configparser contextlib copy csv dataclasses difflib doctest email/message enum "
    "fractions functools gettext glob gzip heapq html/parser http/client inspect ipaddress json/decoder json/encoder "
    "locale logging/__init__ mailbox mimetypes optparse pathlib pdb pickle pprint pstats queue random sched selectors "
    "shelve shlex shutil socket socketserver statistics string subprocess tarfile tempfile textwrap threading tokenize "
    "trace traceback types typing unittest/case unittest/mock urllib/parse urllib/request uuid weakref xml/dom/minidom "
    "zipfile"
).split()
_NO_PROSE = ("::=", ">>>", "|", "===", "***", "---", "~~~", "^^^", " in version ")


@dataclass(frozen=True)
class Corpus:
    """A text that can be cut at words. `code` is true where lines matter more than sentences."""

    name: str
    text: str
    code: bool = False

    @functools.cached_property
    def ends(self) -> Int[np.ndarray, "words"]:
        """The character at which each word ends."""
        return np.array([piece.end() for piece in _PIECE.finditer(self.text)], dtype=np.int64)

    @functools.cached_property
    def sentences(self) -> Int[np.ndarray, "sentences"]:
        """The words that begin a sentence (of code: a paragraph)."""
        starts = [0] + [gap.start() for gap in _SENTENCE.finditer(self.text)]
        first = np.unique(np.searchsorted(self.ends, starts, side="right"))
        return first[first < len(self)]

    @functools.cached_property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    def __len__(self) -> int:
        return len(self.ends)

    def inside_word(self, piece: int) -> bool:
        """Whether a piece continues a long word that was cut, in a text that has spaces at all."""
        spaced = self.text.count(" ") * 16 > len(self.text)
        return spaced and 0 < piece < len(self) and not self.text[self.ends[piece - 1]].isspace()

    def passage(self, first: int, words: int) -> str:
        """`words` words from word `first` on, the space before the first one included.

        Past the end the text begins again.
        """
        parts = []
        while words > 0:
            first %= len(self)
            last = min(first + words, len(self))
            start = self.ends[first - 1] if first else 0
            parts.append(self.text[start : self.ends[last - 1]])
            first, words = last, words - (last - first)
        return "\n\n".join(part if k == 0 else part.lstrip() for k, part in enumerate(parts))


def corpus(name: str) -> Corpus:
    """`english` or `code`. Raises AssayError for another name."""
    known = {"english": english, "code": code}
    if name not in known:
        raise AssayError(f"unknown text {name!r}; there are english and code, and text:FILE for a file of your own")
    return known[name]()


@functools.cache
def english() -> Corpus:
    """The prose of Python's language reference, as the interpreter's `help()` carries it.

    About 34,000 words, no paragraph twice. Raises AssayError where this Python lacks it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise AssayError(
            "this Python comes without pydoc_data, the source of English text; give a file of your own as text:FILE"
        ) from error
    paragraphs = dict.fromkeys(
        _unwrap(paragraph)
        for topic in sorted(topics)
        for paragraph in re.split(r"\n\s*\n", topics[topic])
        if _is_prose(paragraph)
    )
    return Corpus("english", "\n\n".join(paragraphs))


def _unwrap(paragraph: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"(?<=\w-)\n\s*(?=\w)", "", paragraph)).strip().removeprefix("* ")


def _is_prose(paragraph: str) -> bool:
    # What help() also shows: headings, grammar, tables, sessions, listings.
    if any(mark in paragraph for mark in _NO_PROSE):
        return False
    plain = _unwrap(paragraph)
    words = plain.split()
    letters = sum(c.isalpha() or c.isspace() for c in plain)
    return len(words) >= 8 and plain[0].isupper() and plain[-1] in ".:" and letters >= 0.85 * len(plain)


@functools.cache
def code() -> Corpus:
    """Source of the standard library's modules, comments before the first statement left out."""
    folder = Path(sysconfig.get_path("stdlib"))
    sources = [
        _tidy(path.read_text(encoding="utf-8")) for name in _MODULES if (path := folder / f"{name}.py").is_file()
    ]
    if not sources:
        raise AssayError(
            "this Python comes without the source of its standard library; give a file of your own as text:FILE"
        )
    return Corpus("code", "\n\n\n".join(sources), code=True)


def _tidy(source: str) -> str:
    lines = source.expandtabs(4).splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(line.rstrip() for line in lines[first:])).strip()


def read(path: str | Path) -> str:
    """The text of a user's file. Raises AssayError where it is missing, a folder, empty or not UTF-8."""
    try:
        text = Path(path).expanduser().read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise AssayError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise AssayError(f"{path} is not UTF-8 text (byte {error.start}); convert it, as with iconv -t UTF-8") from None
    except OSError as error:
        raise AssayError(f"{path} cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise AssayError(f"{path} is empty; a text of at least one window is needed")
    return text
