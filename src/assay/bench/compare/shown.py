"""What of the cells is there to read and to look at: failures, kept positions, and the texts they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.bench.compare.pairs import Cell, Groups
from assay.report.summary import Failure, Kept, Passage

Where = Mapping[tuple[str, int], str]  # what each task at each length is called


def failures(groups: Groups, where: Where, each: int = 2) -> tuple[Failure, ...]:
    """Answers that full got right and a policy got wrong, at most `each` a policy, budget and task."""
    found = []
    for (task, length, policy, budget), group in groups.items():
        full = groups.get((task, length, "full", "1"), {})
        wrong = [
            i
            for i, c in sorted(group.items())
            if c.get("metric") != "nll" and c["score"] < 0.5 <= full.get(i, c)["score"]
        ]
        for example in wrong[:each]:
            c = group[example]
            texts = (c.get("prompt") or "", c.get("wanted") or "", c.get("answer") or "")
            lost = tuple(map(_passage, c.get("passages") or ()))
            found.append(Failure(where[task, length], policy, budget, example, *texts, c.get("survived"), lost))
    return tuple(found)


def _passage(told: Mapping) -> Passage:
    start, end = (at - told["first"] for at in told["answer"])
    return Passage(told["first"], (start, end), tuple(told["pieces"]), told["shades"])


def kept(cells: Sequence[Cell], where: Where) -> tuple[Kept, ...]:
    """Where the tokens lie that were held, of the cells that recorded it."""
    return tuple(
        Kept(
            where[c["task"], c.get("length", 0)], c["policy"], c["budget"], c["example"], c["tokens"],
            {int(layer): list(shares) for layer, shares in c["positions"].items()},
            tuple((int(a), int(b)) for a, b in c.get("spans") or ()),
            c.get("shades") or "",
        )
        for c in cells
        if c.get("positions") and c["policy"] != "full"
    )  # fmt: skip


def texts(cells: Sequence[Cell], where: Where) -> dict[tuple[str, int], tuple[str, ...]]:
    """The contexts whose kept tokens were recorded, token by token, by task's name and example."""
    return {(where[c["task"], c.get("length", 0)], c["example"]): tuple(c["pieces"]) for c in cells if c.get("pieces")}
