"""Label a word after labelled examples: few-shot classification.

The context is nothing but exemplars, each as useful as any other of its class; the answer is the label of a new word.
Every exemplar says something of its own, so this is where dropping look-alikes is expected not to help.

seam: task
row: D51
source: TwinKV, row D51 (its few-shot classification)
object: FewShot
aliases: few_shot
"""

import numpy as np

from assay.core.errors import AssayError
from assay.tasks.haystack import within
from assay.tasks.task import Count, Example, Generated, fill
from assay.tasks.words import CATEGORIES

_SIGNS = ("alpha", "bravo", "delta", "gamma", "omega", "sigma")


class FewShot(Generated):
    """`classes`: how many categories there are.

    `signs`: label them with words that mean nothing here, so that the exemplars alone tell the labels.
    """

    def __init__(self, *, classes: int = 6, signs: bool = False):
        within("classes", classes, 2, len(CATEGORIES))
        if not isinstance(signs, bool):
            raise AssayError(f"signs={signs!r}: True or False is needed")
        self.classes, self.signs = classes, signs

    def example(self, rng: np.random.Generator, length: int, count: Count) -> Example:
        names = rng.permutation(list(CATEGORIES))[: self.classes].tolist()
        labels = dict(zip(names, rng.permutation(_SIGNS).tolist() if self.signs else names, strict=False))
        words = rng.permutation([(word, labels[name]) for name in names for word in CATEGORIES[name]]).tolist()
        asked, answer = words.pop()
        shots = words + [shot for _ in range(8) for shot in rng.permutation(words).tolist()]

        def build(n: int) -> Example:
            used = [shots[k % len(shots)] for k in range(n)]
            used += (
                [next(shot for shot in words if shot[1] == answer)]
                if (answer not in [label for _, label in used])
                else []
            )
            context, spans = "", []
            for word, label in used:
                context += f"Word: {word}\nLabel: "
                if label == answer:
                    spans.append((len(context), len(context) + len(label)))
                context += f"{label}\n\n"
            meta = {"word": asked, "shots": len(used), "labels": sorted(labels.values())}
            return Example(context, f"Word: {asked}\nLabel:", (f" {answer}",), tuple(spans), meta)

        return fill(build, length, count, guess=length // 10)
