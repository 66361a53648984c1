"""Shows the table of parity errors after a run that measured them, and keeps tests away from the user's cache."""

from __future__ import annotations

import pytest

ROWS = pytest.StashKey[list]()


@pytest.fixture
def parity_rows(request: pytest.FixtureRequest) -> list:
    return request.config.stash.setdefault(ROWS, [])


def pytest_terminal_summary(terminalreporter, config) -> None:
    if rows := config.stash.get(ROWS, []):
        from tests.checkpoints.parity import table

        terminalreporter.write_line("\nLargest differences from transformers' logits (float32):")
        terminalreporter.write_line(table(rows))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder for this test alone."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
