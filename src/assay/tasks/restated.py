"""Track variables through a long generation that restates what it still needs.

The prompt assigns some variables; a trace, which stands for what the model generated, assigns more of them early on and
then works (fillers) or restates a value that is known (at rate `rho`). In the end one variable is asked. One form for
all, `x07 = v31 ;`, so that a small model with one token a word and a large text model read the same lines:

    x03 = v17 ; x11 = v02 ; … | n4 n0 n6 ; x05 = v20 ; x03 = v17 ; n1 n1 n7 ; … x11 =   ->   v02

A variable never changes, so each copy of an assignment is as good as the first: redundancy in the text is rho times the
steps over the variables.

seam: task
row: D21
source: Random Attention, row D21; variable tracking after Hsieh et al. 2024, RULER (arXiv:2404.06654)
object: Restated
"""

import functools
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from assay.core.errors import AssayError
from assay.tasks.closed import decode, numbered
from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill

_STATEMENT = 4


class Restated(Generated):
    """`rho`: the share of the trace's steps, those that assign aside, which restate a value.

    `variables`: how many the prompt assigns; `derived`: how many the trace does; `asked`: of which of them one is
    asked; `names`, `values`, `fillers`: sizes of the vocabulary. `meta["prompt"]` is where the prompt ends in the
    context (characters), `meta["copies"]` how often the asked value is stated, `meta["where"]` what assigned it.
    """

    metric = "generation"

    def __init__(
        self,
        *,
        rho: float = 0.25,
        variables: int = 8,
        derived: int = 8,
        asked: Literal["any", "prompt", "trace"] = "any",
        names: int = 32,
        values: int = 32,
        fillers: int = 8,
    ):
        within("rho", rho, 0, 1, whole=False)
        sizes = {"variables": variables, "derived": derived, "names": names, "values": values, "fillers": fillers}
        for name, number in sizes.items():
            within(name, number, {"derived": 0, "values": 2}.get(name, 1), 10_000)
        if variables + derived > names:
            raise AssayError(
                f"variables={variables} and derived={derived} need {variables + derived} names; names={names}"
            )
        if asked not in ("any", "prompt", "trace") or (asked == "trace" and not derived):
            raise AssayError(f"asked={asked!r}: any, prompt or trace is needed (trace only with derived variables)")
        self.rho, self.variables, self.derived, self.asked = rho, variables, derived, asked
        self.names, self.values, self.fillers = names, values, fillers

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """All words; the ids of `batch` are places in this list."""
        return [";", "=", *numbered("x", self.names), *numbered("v", self.values), *numbered("n", self.fillers)]

    @property
    def prompt_words(self) -> int:
        """Words of the prompt in every sequence of `batch`."""
        return _STATEMENT * self.variables

    def batch(
        self, rows: int, length: int, seed: int, facts: np.random.Generator | None = None
    ) -> tuple[Int[np.ndarray, "rows tokens"], Bool[np.ndarray, "rows tokens"]]:
        """`rows` sequences of prompt, trace, question and answer, and which words are values stated before.

        Those are the values of restatements and the last word: what a model is trained to say. At most `length` words,
        less by 3 at most. `facts` draws what is asked and answered, where that must not depend on the length.
        Raises AssayError where the trace would be too short for its variables.
        """
        steps = (length - self.prompt_words - 3) // _STATEMENT
        if steps < 2 * self.derived:
            raise AssayError(
                f"{length} words are too few for {self.variables} + {self.derived} variables; "
                f"{self.prompt_words + 3 + 2 * _STATEMENT * self.derived} are needed"
            )
        rng = np.random.default_rng([seed, 2])
        which, known = self._trace(rng, rows, steps)
        total = self.variables + self.derived
        facts = rng if facts is None else facts
        name = 2 + facts.permuted(np.tile(np.arange(self.names), (rows, 1)), axis=1)[:, :total]
        value = 2 + self.names + facts.integers(self.values, size=(rows, total))
        low, high = {"any": (0, total), "prompt": (0, self.variables), "trace": (self.variables, total)}[self.asked]
        last = facts.integers(low, high, size=(rows, 1))
        told = np.concatenate([np.tile(np.arange(self.variables), (rows, 1)), which, last], axis=1)
        work = 2 + self.names + self.values + rng.integers(self.fillers, size=(*told.shape, _STATEMENT))
        states = told >= 0
        take = np.maximum(told, 0)
        equals, stop = np.ones_like(told), np.zeros_like(told)
        lines = np.stack([np.take_along_axis(name, take, 1), equals, np.take_along_axis(value, take, 1), stop], axis=-1)
        lines = np.where(states[..., None], lines, work)
        lines[..., -1] = 0
        asked = np.zeros(lines.shape, dtype=bool)
        asked[:, self.variables : -1, 2] = known & states[:, self.variables : -1]
        asked[:, -1, 2] = True
        return lines.reshape(rows, -1)[:, :-1], asked.reshape(rows, -1)[:, :-1]

    def _trace(
        self, rng: np.random.Generator, rows: int, steps: int
    ) -> tuple[Int[np.ndarray, "rows steps"], Bool[np.ndarray, "rows steps"]]:
        """What variable each step states, or -1, and whether it restates it. New ones come in the first half."""
        order = np.argsort(rng.random((rows, steps)), axis=1)
        early = max(self.derived, steps // 2)
        first = np.argsort(rng.random((rows, early)), axis=1)[:, : self.derived]
        assigns = np.zeros((rows, steps), dtype=bool)
        np.put_along_axis(assigns, first, True, axis=1)
        free = np.take_along_axis(~assigns, order, axis=1)
        chosen = free & (np.cumsum(free, axis=1) <= round(self.rho * (steps - self.derived)))
        restates = np.zeros_like(assigns)
        np.put_along_axis(restates, order, chosen, axis=1)
        have = self.variables + np.cumsum(assigns, axis=1)
        drawn = np.floor(rng.random((rows, steps)) * have).astype(np.int64)
        return np.where(assigns, have - 1, np.where(restates, drawn, -1)), restates

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        seed = int(rng.integers(2**62))
        least = 2 * self.derived

        def build(more: int) -> Example:
            words = self.prompt_words + 3 + _STATEMENT * (least + more)
            ids = self.batch(1, words, seed, facts=np.random.default_rng([seed, 3]))[0][0]
            context, starts = decode(self.vocabulary, ids[:-3])
            question, _ = decode(self.vocabulary, ids[-3:-1])
            answer = self.vocabulary[ids[-1]]
            places = np.flatnonzero(ids[:-3] == ids[-3]) + 2
            spans = tuple((starts[place], starts[place] + len(answer)) for place in places)
            where = "prompt" if places[0] < self.prompt_words else "trace"
            meta = {
                "key": self.vocabulary[ids[-3]],
                "prompt": starts[self.prompt_words] - 1 if least + more else len(context),
            }
            meta |= {"copies": len(spans), "where": where, "rho": self.rho, "words": len(ids)}
            return Example(context, " " + question, (f" {answer}",), spans, meta)

        return fill(build, length, count, guess=max(length // 10, 1))
