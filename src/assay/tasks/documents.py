"""Answer a question from one or two of many documents, all about places and people that do not exist.

RULER's `qa_1` (one document answers) and `qa_2` (two are needed), with documents made up by the seed in place of SQuAD's
and HotpotQA's, so that no answer can be known beforehand: `Document 7:` and a few sentences, in an order of their own,
as many as fit. Every other document has the same form as the one that is needed.

seam: task
row: -
source: Hsieh et al. 2024, RULER (arXiv:2404.06654), question answering
object: Documents
aliases: qa
"""

from dataclasses import dataclass

import numpy as np

from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.words import NOUNS, invented_names

_INSTRUCTION = "Use these documents to answer the question that follows them. Say the answer alone.\n\n"
_AGAIN = "\nUse the documents above to answer. Say the answer alone.\n\n"
_KINDS = ("lighthouse", "museum", "theatre", "library", "windmill", "observatory", "chapel", "market hall")
_TRADES = ("joiner", "weaver", "glazier", "printer", "potter", "mason", "baker", "tailor")
_NAMES = 12  # invented names of one place and its keeper
_SENTENCES = 4  # of a document


@dataclass(frozen=True)
class Entry:
    """A place and the person who keeps it, a document each."""

    place: str
    town: str
    builder: str
    keeper: str
    birthplace: str
    teacher: str
    documents: tuple[tuple[str, ...], tuple[str, ...]]


class Documents(Generated):
    """`hops`: 1 asks what one document says, 2 asks about a person whom one document names and another describes."""

    def __init__(self, *, hops: int = 1):
        within("hops", hops, 1, 2)
        self.hops = hops

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        entry = _entry(rng, invented_names(rng, _NAMES))
        question, answer = self._ask(entry, int(rng.integers(2)))
        needed = entry.documents[: self.hops]
        places = rng.random(2)[: self.hops].tolist()
        others = _Others(rng, length // max(count(" ".join(needed[0])), 1) + 2)

        def build(sentences: int) -> Example:
            documents = others.first(sentences)
            marked = [(key, document) for document, key in zip(needed, places, strict=True)] + documents
            context, starts = _INSTRUCTION, {}
            for number, (_, document) in enumerate(sorted(marked, key=lambda pair: pair[0]), 1):
                context += f"Document {number}:\n"
                starts[document] = len(context)
                context += " ".join(document) + "\n\n"
            at = starts[needed[-1]] + " ".join(needed[-1]).index(answer)
            meta = {
                "documents": len(marked), "hops": self.hops, "place": entry.place,
                "supports": tuple(sorted((starts[d], starts[d] + len(" ".join(d))) for d in needed)),
            }  # fmt: skip
            context = context.rstrip("\n") + "\n" + _AGAIN
            return Example(context, f"Question: {question}", (f" {answer}",), ((at, at + len(answer)),), meta)

        return fill(build, length, count, guess=length // 20)

    def _ask(self, entry: Entry, which: int) -> tuple[str, str]:
        """A question that ends in the beginning of its answer's sentence, for base models begin a new line after a bare
        `Answer:`, and exact match would measure that."""
        if self.hops == 1:
            return (
                (f"In which town does the {entry.place} stand? Answer: It stands in the town of", entry.town),
                (f"Who built the {entry.place}? Answer: It was built by", entry.builder),
            )[which]
        return (
            (
                f"In which town was the keeper of the {entry.place} born? Answer: This keeper was born in the town of",
                entry.birthplace,
            ),
            (
                f"From whom did the keeper of the {entry.place} learn a trade? Answer: This keeper learned it from",
                entry.teacher,
            ),
        )[which]


class _Others:
    """Documents that are not needed, with a place among all of them drawn for each; the first n sentences of these."""

    def __init__(self, rng: np.random.Generator, documents: int) -> None:
        names = invented_names(rng, _NAMES * (documents // 2 + 1))
        entries = [_entry(rng, names[k : k + _NAMES]) for k in range(0, len(names), _NAMES)]
        self.documents = [document for entry in entries for document in entry.documents]
        self.places = rng.random(len(self.documents)).tolist()

    def first(self, sentences: int) -> list[tuple[float, tuple[str, ...]]]:
        whole, rest = divmod(sentences, _SENTENCES)
        documents = self.documents[:whole]
        if rest and whole < len(self.documents):
            documents = [*documents, self.documents[whole][:rest]]
        return list(zip(self.places, documents, strict=False))


def _entry(rng: np.random.Generator, names: list[str]) -> Entry:
    kind, trade, thing = int(rng.integers(len(_KINDS))), int(rng.integers(len(_TRADES))), int(rng.integers(len(NOUNS)))
    built, came = (int(year) for year in rng.integers(1700, 2000, 2))
    place, town, birthplace, home = f"{names[0]} {_KINDS[kind]}", names[1], names[2], names[3]
    builder, keeper, teacher, giver = (f"{names[k]} {names[k + 1]}" for k in (4, 6, 8, 10))
    about_place = (
        f"The {place} stands in the town of {town}.",
        f"It was built in {built} by {builder}.",
        f"Its keeper is {keeper}.",
        f"Its oldest piece, a {NOUNS[thing]}, was a gift of {giver}.",
    )
    about_keeper = (
        f"{keeper} was born in the town of {birthplace}.",
        f"There {keeper} learned the trade of a {_TRADES[trade]} from {teacher}.",
        f"In {came} {keeper} left for {home}.",
        f"The work as a {_TRADES[trade]} was given up soon after that.",
    )
    return Entry(place, town, builder, keeper, birthplace, teacher, (about_place, about_keeper))
