"""Shows the table of parity errors after a run that measured them, and keeps tests away from the user's cache."""

from __future__ import annotations

from dataclasses import astuple

import pytest


@pytest.fixture
def parity_rows(record_property):
    """Keeps a row with the test's report, so that it reaches the summary from whichever process ran the test."""
    return lambda family, label, errors: record_property("parity", [family, label, *astuple(errors)])


def pytest_terminal_summary(terminalreporter) -> None:
    reports = (report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, []))
    rows = [value for report in reports for name, value in report.user_properties if name == "parity"]
    if rows:
        from tests.checkpoints.parity import Errors, table

        terminalreporter.write_line("\nLargest differences from transformers' logits (float32):")
        terminalreporter.write_line(table([(family, label, Errors(*errors)) for family, label, *errors in rows]))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder for this test alone."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
