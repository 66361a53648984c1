"""The comparison as a table in a terminal."""

from __future__ import annotations

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from assay.report import format as say
from assay.report.summary import Difference, Row, Summary, TaskSummary

COLOURS = {"better": "green", "worse": "red", "not distinguishable": "dim", "too few examples": "yellow"}
LEGEND = "≈ not distinguishable at 95% (paired bootstrap), ? too few examples to decide; “of full” is over all layers"
MIDDLING, WIDE, WIDEST = 58, 94, 126  # room beside the names for intervals of means, more columns, intervals of differences


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Tables by task, then what they add up to, what was skipped and what is recommended."""
    console = console or Console()
    model = summary.run.get("fixed", {}).get("model", "?")
    console.print(f"[bold]{escape(str(model))}[/]: " + escape("; ".join(say.settings_text(summary.run))))
    for task in summary.tasks:
        console.print(task_table(task, console.width))
    console.print(LEGEND, style="dim", soft_wrap=True)
    for policy, note in summary.notes:
        console.print(f"[yellow]note[/]  {escape(policy)}: {escape(note)}", soft_wrap=True)
    for skip in summary.skipped:
        console.print(f"[yellow]skipped[/]  {escape(skip.what)} ({skip.cells} cells): {escape(skip.why)}", soft_wrap=True)
    for line in summary.findings:
        console.print("• " + escape(line), soft_wrap=True)
    console.print(Group(Text(summary.recommendation.says, style="bold")), soft_wrap=True)
    if summary.recommendation.code:
        console.print("  " + escape(summary.recommendation.code), soft_wrap=True, style="cyan")
    if summary.finished < summary.planned:
        left = summary.planned - summary.finished
        console.print(f"[yellow]{left} of {summary.planned} cells are not finished; run the same command again to go on[/]")


def task_table(task: TaskSummary, width: int = 120) -> Table:
    """One row a policy and budget; differences are paired. Columns that do not fit the width are left out, intervals first."""
    rows = [*([task.full] if task.full else []), *task.rows]
    spare = width - max((len(r.name) for r in rows), default=0)
    what = "perplexity, lower is better" if task.measure == "nll" else "share of right answers"
    title = f"{task.name}: {what}, {task.examples} examples"
    if task.says_nothing:
        title += f"\nsays nothing here: {task.says_nothing}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("policy@budget", no_wrap=True)
    for name in ("mean", "− full", "− random", "bytes", "of full"):
        table.add_column(name, justify="right", no_wrap=True)
    if spare >= WIDE:
        for name in ("tokens", "answer held", "tok/s", "1st token"):
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, spare), style="dim" if task.says_nothing else None)
    return table


def _cells(row: Row, spare: int) -> list[str | Text]:
    interval = say.interval_text(row)
    cells: list[str | Text] = [
        Text(row.name, style="bold" if row.policy == "full" else ""),
        Text(say.quality_text(row)).append(f" {interval}" if interval and spare >= MIDDLING else "", style="dim"),
        _difference(row.against_full, spare),
        _difference(row.against_random, spare),
        say.bytes_text(row.bytes),
        say.percent(row.share),
    ]
    if spare >= WIDE:
        cells += [
            say.number(row.kept, 0),
            say.percent(row.survived),
            say.number(row.tokens_per_second, 1),
            say.seconds_text(row.first_token),
        ]
    return cells


def _difference(difference: Difference | None, spare: int) -> Text:
    if difference is None:
        return Text(say.NONE, style="dim")
    text = say.difference_text(difference) if spare >= WIDEST else say.difference_mean(difference)
    return Text(text, style=COLOURS[difference.verdict])
