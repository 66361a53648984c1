"""Scoring of outputs as in RULER: an answer counts where the output contains it, in any case.

Source: Hsieh et al. 2024, RULER (arXiv:2404.06654).
"""

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def contains(output: str, answer: str) -> bool:
    """Whether the output holds the answer, case aside, any control character read as a line's end. An empty answer never is."""
    wanted = _plain(answer)
    return bool(wanted) and wanted in _plain(output)


def string_match_all(output: str, answers: Sequence[str]) -> float:
    """Share of the answers that the output holds, in [0, 1]; 0 where there are no answers."""
    return sum(contains(output, answer) for answer in answers) / max(len(answers), 1)


def string_match_part(output: str, answers: Sequence[str]) -> float:
    """1 where the output holds at least one of the answers, else 0: RULER's measure where several are right."""
    return float(any(contains(output, answer) for answer in answers))


def _plain(text: str) -> str:
    return _CONTROL.sub("\n", text).strip().lower()
