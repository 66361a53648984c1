"""Tables for people on a terminal, aligned plain text for everything else."""

import sys
from collections.abc import Sequence


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their columns. The last column takes what room is left."""
    if not sys.stdout.isatty():
        print(plain(columns, rows))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (columns, *rows))
    return "\n".join(line.rstrip() for line in lines)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *body))
