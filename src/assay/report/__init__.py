"""Pages, tables and pictures made from a comparison's summary. Numbers come in; nothing here computes a result.

`print_summary` writes the terminal table, `write_page` the self-contained HTML page, `write_csv` the cells as a table,
`picture` a static SVG. All of them take a `Summary` (see `assay.report.summary`).
"""

from assay.report.export import write_csv
from assay.report.files import write_atomically as write_text
from assay.report.page import write_page
from assay.report.picture import picture
from assay.report.summary import Difference, Estimate, Recommendation, Row, Summary, TaskSummary
from assay.report.terminal import print_summary

__all__ = [
    "Difference",
    "Estimate",
    "Recommendation",
    "Row",
    "Summary",
    "TaskSummary",
    "picture",
    "print_summary",
    "write_csv",
    "write_page",
    "write_text",
]
