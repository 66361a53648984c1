"""Numbers as people read them."""

from __future__ import annotations

import math

from assay.report.summary import Difference, Estimate, Row

NONE = "–"
MEBIBYTE = 2**20


def bytes_text(value: float | None) -> str:
    if value is None:
        return NONE
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f} B"


def seconds_text(value: float | None) -> str:
    if value is None:
        return NONE
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    return NONE if value is None else f"{100 * value:.{digits}f}%"


def shown(row: Row) -> tuple[float, float | None, float | None]:
    """Quality as it is shown: the share of right answers, or perplexity (nats a token through exp)."""
    q = row.quality
    if row.measure == "nll":
        return (*(None if v is None else math.exp(min(v, 700.0)) for v in (q.mean, q.low, q.high)),)  # type: ignore[return-value]
    return q.mean, q.low, q.high


def quality_text(row: Row) -> str:
    mean, _, _ = shown(row)
    return f"{mean:.3g}" if row.measure == "nll" and mean >= 100 else number(mean)


def interval_text(row: Row) -> str:
    _, low, high = shown(row)
    digits = 0 if row.measure == "nll" and high is not None and high >= 100 else 2
    return "" if low is None else f"{number(low, digits)}–{number(high, digits)}"


def estimate_text(estimate: Estimate | None) -> str:
    return NONE if estimate is None else number(estimate.mean)


def percent_interval(estimate: Estimate) -> str:
    return (
        "" if estimate.low is None or estimate.high is None else f"{100 * estimate.low:.0f}–{100 * estimate.high:.0f}"
    )


def signed(value: float) -> str:
    """Three digits where two would hide a small difference."""
    text = f"{value:+.{3 if abs(value) < 0.1 else 2}f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def difference_text(difference: Difference | None) -> str:
    """The mean difference with its interval; ≈ marks what is not distinguishable from zero, ? what is undecided."""
    if difference is None:
        return NONE
    if difference.identical:
        return "identical"
    return f"{difference_mean(difference)} {difference_interval(difference)}".rstrip()


def difference_mean(difference: Difference) -> str:
    if difference.identical:
        return "identical"
    open_ = difference.verdict == "too few examples" and difference.low is not None
    mark = "≈ " if difference.verdict == "not distinguishable" else "? " if open_ else ""
    return mark + signed(difference.mean)


def difference_interval(difference: Difference) -> str:
    if difference.low is None or difference.high is None or difference.identical:
        return ""
    return f"[{signed(difference.low)}, {signed(difference.high)}]"


def budget_text(row: Row) -> str:
    """The nominal budget beside what the eligible layers' tokens really came to."""
    if row.kept is None or not row.tokens:
        return row.budget
    return f"{row.budget} ({row.kept:.0f} of {row.tokens:.0f} tokens)"


def settings_text(run: dict) -> list[str]:
    """The sentences at the head of every report, including what was hidden from the policies."""
    fixed, grid = run.get("fixed", {}), run.get("grid", {})
    aware = fixed.get("aware")
    seen = "compressed together with the question (aware)" if aware else "compressed before the question is seen"
    scored = "answers are generated greedily" if fixed.get("generate") else "answers are scored in one forced pass"
    each = "a task and length" if len(grid.get("lengths", ())) > 1 else "a task"
    pieces = f", read {fixed['chunk']} tokens at a time" if fixed.get("chunk") else ""
    matched = (
        ["budgets are shares of the full cache's bytes in the eligible layers"] if fixed.get("match") == "bytes" else []
    )
    return [
        f"contexts of {lengths_text(run)} tokens{pieces}, {seen}",
        *matched,
        f"{grid.get('examples', '?')} examples {each}, from seed {fixed.get('seed', '?')}; {scored}",
        f"in {fixed.get('dtype', '?')} on {fixed.get('device', '?')}",
    ]


def lengths_text(run: dict) -> str:
    """`1024`, or `512, 1024 and 2048`."""
    *others, last = map(str, run.get("grid", {}).get("lengths") or [run.get("fixed", {}).get("length", "?")])
    return f"{', '.join(others)} and {last}" if others else last
