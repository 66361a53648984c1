"""What the page's script draws, as plain data. Only what is drawn is in it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from assay.report import format as say
from assay.report.kept import kept_pictures
from assay.report.palette import styles
from assay.report.summary import Row, Summary


def plots(summary: Summary) -> dict[str, Any]:
    """Points by task, speeds, bytes by layer and kept tokens."""
    return {
        "styles": styles(summary.policies),
        "budgets": list(summary.budgets),
        "lengths": lengths(summary),
        "tasks": [
            {
                "name": task.name,
                "task": task.task,
                "length": task.length,
                "measure": task.measure,
                "says_nothing": task.says_nothing,
                "front": list(task.front),
                "full": _point(task.full) if task.full else None,
                "rows": [_point(row) for row in task.rows],
            }
            for task in summary.tasks
        ],
        "speed": speeds(summary),
        "layers": layers(summary),
        "kept": kept_pictures(summary),
    }


def lengths(summary: Summary) -> list[int]:
    return sorted({task.length for task in summary.tasks})


def _point(row: Row) -> dict[str, Any]:
    mean, low, high = say.shown(row)
    return {
        "policy": row.policy,
        "budget": row.budget,
        "name": row.name,
        "mean": mean,
        "low": low,
        "high": high,
        "bytes": row.bytes,
        "share": row.share,
        "share_eligible": row.share_eligible,
        "text": f"{row.name}: {say.quality_text(row)} {say.interval_text(row)}<br>{say.bytes_text(row.bytes)}, "
        f"{say.percent(row.share)} of full; eligible layers {say.bytes_text(row.bytes_eligible)}, {say.percent(row.share_eligible)}"
        f"<br>− full: {say.difference_text(row.against_full)} ({row.against_full.verdict if row.against_full else say.NONE})",
    }


def speeds(summary: Summary) -> list[dict[str, Any]]:
    """Decoding rate and time to first token by policy and budget: medians over the tasks where they were measured."""
    names = ("name", "policy", "rate", "first")
    return [{name: line[name] for name in names} for line in glance(summary) if line["rate"] or line["first"]]


def glance(summary: Summary) -> list[dict[str, Any]]:
    """The combined table: one line a policy and budget, its row on each task, and what it holds and how fast it is over all tasks."""
    lines: dict[str, dict[str, Any]] = {}
    for task in summary.tasks:
        for row in ([task.full] if task.full else []) + list(task.rows):
            line = lines.setdefault(
                row.name, {"name": row.name, "policy": row.policy, "budget": row.budget, "by_task": {}}
            )
            line["by_task"][task.name] = row
    for line in lines.values():
        rows = list(line["by_task"].values())
        line |= {name: _over(fmean, rows, name) for name in ("bytes", "share", "kept")}
        line |= {"rate": _over(median, rows, "tokens_per_second"), "first": _over(median, rows, "first_token")}
    order = {p: i for i, p in enumerate(("full", *(p for p in summary.policies if p != "full")))}
    return sorted(lines.values(), key=lambda line: (order[line["policy"]], _place(summary, line["budget"])))


def _over(reduce: Callable[[list[float]], float], rows: list[Row], name: str) -> float | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return reduce(values) if values else None


def _place(summary: Summary, budget: str) -> int:
    return summary.budgets.index(budget) if budget in summary.budgets else -1


def layers(summary: Summary) -> dict[str, Any] | None:
    """Bytes of each layer by policy and budget, mean over the tasks; None where no cell says them."""
    found = []
    for line in glance(summary):
        lists = [row.bytes_by_layer for row in line["by_task"].values() if row.bytes_by_layer]
        if lists:
            means = [round(fmean(column)) for column in zip(*lists, strict=True)]
            found.append({"name": line["name"], "policy": line["policy"], "bytes": means})
    full = next((line["bytes"] for line in found if line["policy"] == "full"), None)
    return {"full": full, "rows": [line for line in found if line["policy"] != "full"]} if full else None
