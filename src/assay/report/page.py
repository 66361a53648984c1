"""The report as one self-contained HTML page: no request leaves it, it opens from a folder, prints, and fits a phone."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from statistics import fmean, median
from typing import Any

import jinja2

from assay.report import format as say
from assay.report.files import write_atomically
from assay.report.kept import kept_pictures
from assay.report.palette import styles
from assay.report.picture import picture
from assay.report.summary import Row, Summary


def write_page(summary: Summary, path: Path) -> None:
    """Write `report.html`. Raises AssayError where it cannot be written."""
    write_atomically(path, render(summary))


def render(summary: Summary) -> str:
    """The page's text, with plotly's library and all data inside."""
    environment = jinja2.Environment(loader=jinja2.FunctionLoader(_file), autoescape=True, undefined=jinja2.StrictUndefined)
    environment.globals.update(say=say, glance=glance(summary), failures=_failures(summary), settings=settings(summary.run))
    return environment.get_template("page.html.j2").render(
        summary=summary,
        run=summary.run,
        fixed=summary.run.get("fixed", {}),
        styles=styles(summary.policies),
        css=_file("page.css") + _colours(summary.policies),
        script=_file("page.js"),
        plotly=_plotly(),
        data=_inside_script(json.dumps(plots(summary), separators=(",", ":"))),
        kept=kept_pictures(summary),
        picture=picture(summary, columns=2),
    )


def _colours(policies: tuple[str, ...]) -> str:
    rules = []
    for policy, style in styles(policies).items():
        name = "".join(letter if letter.isalnum() else f"\\{ord(letter):x} " for letter in policy)
        rules.append(f'[data-policy="{name}"] {{ --light: {style["light"]}; --dark: {style["dark"]}; }}')
    return "\n".join(rules)


def _file(name: str) -> str:
    return resources.files("assay.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    # plotly's own plotly.offline would import its whole Python side for the sake of one file
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def _inside_script(text: str) -> str:
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plots(summary: Summary) -> dict[str, Any]:
    """What the page's script draws: points by task, and speeds."""
    return {
        "styles": styles(summary.policies),
        "tasks": [
            {
                "name": task.name,
                "measure": task.measure,
                "says_nothing": task.says_nothing,
                "full": _point(task.full) if task.full else None,
                "rows": [_point(row) for row in task.rows],
            }
            for task in summary.tasks
        ],
        "speed": speeds(summary),
    }


def _point(row: Row) -> dict[str, Any]:
    mean, low, high = say.shown(row)
    return {
        "policy": row.policy,
        "name": row.name,
        "mean": mean,
        "low": low,
        "high": high,
        "bytes": row.bytes,
        "eligible": row.bytes_eligible,
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
            line = lines.setdefault(row.name, {"name": row.name, "policy": row.policy, "budget": row.budget, "by_task": {}})
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


def _failures(summary: Summary, most: int = 40) -> list[Any]:
    """At most `most`, taken in turn from all tasks and policies so that none is crowded out."""
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for failure in summary.failures:
        groups.setdefault((failure.task, failure.policy, failure.budget), []).append(failure)
    turns = max(map(len, groups.values()), default=0)
    chosen = [group[turn] for turn in range(turns) for group in groups.values() if turn < len(group)][:most]
    return [f for f in summary.failures if f in chosen]


def settings(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Everything run.json says, as name and text."""
    found = [(k, v) for k, v in {**run.get("fixed", {}), **run.get("grid", {})}.items()]
    found += [(k, v) for k, v in run.get("versions", {}).items()]
    found += [("machine" if i == 0 else f"machine {i + 1}", m) for i, m in enumerate(run.get("machines", []))]
    found += [(k, run[k]) for k in ("created", "finished", "command") if run.get(k)]
    return [(k, _plain(v)) for k, v in found]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return "yes" if value is True else "no" if value is False else str(value)
