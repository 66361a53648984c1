"""The report as one self-contained HTML page: no request leaves it, it opens from a folder, prints, and fits a phone."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from assay.report import format as say
from assay.report.files import write_atomically
from assay.report.kept import runs
from assay.report.palette import styles
from assay.report.picture import picture
from assay.report.plots import glance, lengths, plots
from assay.report.summary import Failure, Leader, Summary

MOST_FAILURES = 40


def write_page(summary: Summary, path: Path) -> None:
    """Write `report.html`. Raises AssayError where it cannot be written."""
    write_atomically(path, render(summary))


def render(summary: Summary) -> str:
    """The page's text, with plotly's library (once, and run only when a plot comes into view) and all data inside."""
    return template("page.html.j2").render(
        summary=summary,
        run=summary.run,
        fixed=summary.run.get("fixed", {}),
        styles=styles(summary.policies),
        css=file("page.css") + colours(summary.policies),
        script=file("page.js"),
        plotly=_plotly(),
        data=inside_script(json.dumps(plots(summary), separators=(",", ":"))),
        picture=picture(summary, columns=2),
        glance=glance(summary),
        lengths=lengths(summary),
        scale=whiskers(summary.leaders),
        failures=chosen_failures(summary),
        runs=runs,
        settings=settings(summary.run),
    )


def template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(file), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.globals.update(say=say)
    return environment.get_template(name)


def colours(policies: tuple[str, ...]) -> str:
    """A rule for each policy's colours, found by `data-policy`."""
    rules = []
    for policy, style in styles(policies).items():
        name = "".join(letter if letter.isalnum() else f"\\{ord(letter):x} " for letter in policy)
        rules.append(f'[data-policy="{name}"] {{ --light: {style["light"]}; --dark: {style["dark"]}; }}')
    return "\n".join(rules)


def file(name: str) -> str:
    return resources.files("assay.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    # plotly's own plotly.offline would import its whole Python side for the sake of one file
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


def inside_script(text: str) -> str:
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def whiskers(leaders: tuple[Leader, ...]) -> dict[str, Any]:
    """The leaderboard's axis: where a kept share lies in percent of its width, with room for every interval."""
    ends = [v for m in leaders for v in (m.kept.mean, m.kept.low, m.kept.high) if v is not None]
    low, high = min([0.0, *ends]), max([1.0, *ends])
    span = (high - low) * 1.04

    def at(value: float) -> float:
        return round(100 * (value - low) / span, 2)

    return {"at": at, "ticks": [(t, at(t)) for t in (0.0, 0.5, 1.0)]}


def chosen_failures(summary: Summary, most: int = MOST_FAILURES) -> list[Failure]:
    """At most `most`, taken in turn from all tasks and policies so that none is crowded out."""
    groups: dict[tuple[str, str, str], list[Failure]] = {}
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
