"""The cells as a table for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from assay.report.files import write_atomically
from assay.report.summary import Summary

COLUMNS = (
    "model", "task", "metric", "length", "seed", "aware", "policy", "budget", "score", "logprob", "answer_tokens", "kl", "survived",
    "tokens", "kept", "bytes", "bytes_eligible", "bytes_full", "bytes_full_eligible", "peak_bytes",
    "seconds_prefill", "seconds_compress", "seconds_answer", "first_token", "tokens_per_second",
    "skipped", "wanted", "answer", "cell",
)  # fmt: skip


def write_csv(summary: Summary, path: Path) -> None:
    """One line a cell; missing values are empty. UTF-8 with a header."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for cell in summary.cells:
        table.writerow({k: "" if v is None else v for k, v in cell.items()})
    write_atomically(path, text.getvalue())
