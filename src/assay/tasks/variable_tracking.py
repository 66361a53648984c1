"""Follow a chain of assignments through a text and name every variable that ends up with one value.

RULER's `vt`: a number is assigned to a variable, which is assigned to the next one, and so on; the statements stand in
order, each at a place of its own among lines that repeat. All variables of the chain are asked for. A worked example
with a chain of the same length comes first; RULER fills it up to 500 tokens, here it has five lines of filler, so that
512 tokens are enough for the whole.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654), variable tracking
object: VariableTracking
aliases: vt
"""

import string
from dataclasses import dataclass

import numpy as np

from assay.tasks.haystack import FILLER, within
from assay.tasks.task import Count, Example, Generated, fill, room_for
from assay.tasks.words import draw_numbers

_PREAMBLE = "The text below hides assignments of variables. Follow every one of them from its first value on.\n\n"
_SHOWN = 5  # lines of filler in the worked example: the least that RULER can give it


@dataclass(frozen=True)
class Chain:
    """A value and the variables that pass it on; `depths`: where each one's statement stands, ascending in (0, 1)."""

    value: str
    names: tuple[str, ...]
    depths: tuple[float, ...]

    @property
    def statements(self) -> list[str]:
        sources = [self.value, *(f"VAR {name}" for name in self.names)]
        return [f"VAR {name} = {source}" for name, source in zip(self.names, sources, strict=False)]


class VariableTracking(Generated):
    """`hops`: how often the value is passed on; `chains`: how many there are, the first of which is asked for.

    `shots`: 1 for the worked example, 0 for none. The names of a chain are five letters, those of the example three.
    """

    any_order = True

    def __init__(self, *, hops: int = 4, chains: int = 1, shots: int = 1):
        within("hops", hops, 0, 64)
        within("chains", chains, 1, 16)
        within("shots", shots, 0, 1)
        self.hops, self.chains, self.shots = hops, chains, shots

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        chains = self._draw(rng, letters=5)
        shown = self._draw(rng, letters=3)
        before = ""
        if self.shots:
            text, _ = _hide(shown, max(_SHOWN, self.hops + 1))
            before = f"{_PREAMBLE}{text}{self._question(shown[0])} {' '.join(shown[0].names)}\n\n"
        asked = chains[0]

        def build(more: int) -> Example:
            text, starts = _hide(chains, self.hops + 1 + more)
            head = before + _PREAMBLE
            spans = tuple((len(head) + start, len(head) + start + len(name)) for start, name in starts)
            meta = {"value": asked.value, "chains": self.chains, "hops": self.hops, "lines": self.hops + 1 + more}
            meta["max_tokens"] = room_for(asked.names, count)
            answers = (f" {asked.names[0]}", *asked.names[1:])
            return Example(head + text, self._question(asked), answers, spans, meta)

        return fill(build, length, count, guess=length // 24)

    def _question(self, asked: Chain) -> str:
        many = f"{len(asked.names)} variables hold" if self.hops else "1 variable holds"
        return (
            f"Question: Which variables hold the value {asked.value} in the text above? "
            f"Answer: By its assignments, {many} the value {asked.value}, namely:"
        )

    def _draw(self, rng: np.random.Generator, letters: int) -> list[Chain]:
        each = self.hops + 1
        names: dict[str, None] = {}
        while len(names) < each * self.chains:
            names["".join(rng.choice(list(string.ascii_uppercase), letters))] = None
        values = draw_numbers(rng, self.chains, 5)
        depths = np.sort(rng.random((self.chains, each)), axis=1)
        every = list(names)
        return [
            Chain(value, tuple(every[k * each : (k + 1) * each]), tuple(depths[k].tolist()))
            for k, value in enumerate(values)
        ]


def _hide(chains: list[Chain], lines: int) -> tuple[str, list[tuple[int, str]]]:
    """Lines of filler with every statement on a line of its own, and where the first chain's names are assigned.

    Two statements of a chain never follow each other without filler between them, as in RULER.
    """
    before: dict[int, list[tuple[int, int]]] = {}
    for which, chain in enumerate(chains):
        spare = lines - len(chain.names) + 1
        for step, depth in enumerate(chain.depths):
            before.setdefault(step + int(depth * spare), []).append((which, step))
    parts: list[str] = []
    starts: list[tuple[int, str]] = []
    at = 0
    for line in range(lines):
        for which, step in before.get(line, []):
            statement = chains[which].statements[step] + "\n"
            if which == 0:
                starts.append((at + len("VAR "), chains[0].names[step]))
            parts.append(statement)
            at += len(statement)
        parts.append(FILLER)
        at += len(FILLER)
    return "".join(parts), starts
