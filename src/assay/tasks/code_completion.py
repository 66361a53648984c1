"""Complete a line of real code with a name that the file used before.

A window of the standard library's own source, cut in the midst of a line, just before a name that stands earlier in the
window, but not lately: the nearest mention is between a fifth of `far` and `far` characters back. What to write is
decided by what the context holds. The source is public, so a large model may know some of it by heart; what counts
is the difference from the whole cache.

seam: task
row: -
source: next-name completion after Liu et al. 2023, RepoBench (arXiv:2306.03091); the texts are Python's own
object: CodeCompletion
"""

import functools
import re
from collections import Counter

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.text import code

# Strings and comments are passed over as wholes, so that what is left of a match's group is a name in code.
_NAME = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*|\b([A-Za-z_]\w{7,})',
    re.DOTALL,
)
_OFTEN = 12  # a name that comes oftener in the whole library tells little about this window


class CodeCompletion(Generated):
    """`far`: how many characters back the nearest earlier mention may lie at most."""

    def __init__(self, *, far: int = 1500):
        within("far", far, 200, 100_000)
        self.far, self.text = far, code()
        if not _cuts(far):
            raise AssayError(f"far={far}: the library has no name whose last mention lies so far back")

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        source = self.text.text
        name, mention, cut = _cuts(self.far)[int(rng.integers(len(_cuts(self.far))))]
        line = source.rindex("\n", 0, cut) + 1
        nearest = source.rindex("\n", 0, mention) + 1
        words = int(np.searchsorted(self.text.ends, nearest, side="right"))
        least = source[self.text.ends[words - 1] : line]

        def build(more: int) -> Example:
            context = (self.text.passage(words - more, more) + least).lstrip()
            spans = tuple(m.span() for m in re.finditer(rf"(?<!\w){name}(?!\w)", context))
            meta = {"text": f"code:{self.text.checksum}", "back": cut - mention, "max_tokens": 2 * count(name)}
            return Example(context, source[line:cut].rstrip(), (f" {name}",), spans, meta)

        return fill(build, length, count, guess=length // 3)


@functools.cache
def _cuts(far: int) -> list[tuple[str, int, int]]:
    """Names with the place of their nearest earlier mention and the place where they are to be written."""
    source = code().text
    found = [m for m in _NAME.finditer(source) if m.group(1)]
    often = Counter(m.group(1) for m in found)
    last: dict[str, int] = {}
    cuts = []
    for m in found:
        name, cut = m.group(1), m.start()
        mention = last.get(name, cut)
        last[name] = cut
        if far // 5 <= cut - mention <= far and often[name] <= _OFTEN and _can_be_asked(source, name, cut, far // 5):
            cuts.append((name, mention, cut))
    return cuts


def _can_be_asked(source: str, name: str, cut: int, near: int) -> bool:
    """Whether a space comes before the name and something to go by before that, and nothing close by mentions it."""
    before = source[source.rfind("\n", 0, cut) + 1 : cut]
    starts_a_line = not before.strip() or re.search(r"^\s*(async|def|class|import|from)\b", before)
    return before.endswith(" ") and not starts_a_line and name not in source[cut - near : cut]
