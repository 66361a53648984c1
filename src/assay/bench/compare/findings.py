"""The few sentences that a comparison's verdicts add up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from assay.bench.compare.pairs import FEW
from assay.bench.compare.recommend import possible_loss
from assay.report.summary import Difference, Row, TaskSummary, Verdict


def findings(tasks: Sequence[TaskSummary]) -> tuple[str, ...]:
    """The few sentences that the verdicts add up to, over the tasks that say something."""
    rows = [r for t in tasks if not t.says_nothing for r in t.rows]
    by_name, by_policy = defaultdict(list), defaultdict(list)
    for row in rows:
        by_name[row.name].append(row)
        by_policy[row.policy].append(row)
    whole = {t.name: t.full for t in tasks if t.full}
    equal = [name for name, mine in by_name.items() if all(_is(r.against_full, "not distinguishable") for r in mine)]
    lines = []
    if equal:
        said = ", ".join(f"{name} (a loss of up to {_not_excluded(by_name[name], whole):.0%} is not excluded)" for name in equal)
        lines.append(f"Not distinguishable from the full cache on any task: {said}.")
    elif rows and all(any(_is(r.against_full, "worse") for r in mine) for mine in by_name.values()):
        lines.append("Every policy at every budget here is worse than the full cache on some task.")
    for policy, mine in by_policy.items():
        judged = [r.against_random for r in mine if r.against_random and r.against_random.low is not None]
        if judged:
            better, worse, open_ = (sum(d.verdict == v for d in judged) for v in ("better", "worse", "too few examples"))
            also = (f", worse in {worse}" if worse else "") + (f", undecided for want of examples in {open_}" if open_ else "")
            lines.append(f"{policy}: better than random at the same budget in {better} of {len(judged)} comparisons{also}.")
    few = min((r.quality.examples for r in rows), default=FEW)
    if few < FEW:
        lines.append(f"With {few} example{'s' * (few != 1)} a task nothing can be told apart: at least {FEW} are needed for a verdict.")
    return (*lines, *(f"{t.name} says nothing here: {t.says_nothing}." for t in tasks if t.says_nothing))


def _not_excluded(rows: Sequence[Row], whole: Mapping[str, Row]) -> float:
    """The largest relative loss, over the tasks, that the intervals leave open."""
    return max(0.0, *(bound for r in rows if (bound := possible_loss(r, whole[r.task])) is not None))


def _is(difference: Difference | None, verdict: Verdict) -> bool:
    return difference is not None and difference.verdict == verdict
