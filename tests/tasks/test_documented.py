"""The page on tasks tells every task, its metric and all its arguments as they are."""

import inspect
import re
from pathlib import Path

import pytest

from assay.core import registry

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("card", registry.cards("task"), ids=lambda card: card.name)
def test_every_task_has_its_row_and_its_section(card):
    made = registry.load(card)
    parameters = inspect.signature(made).parameters.values()
    title = card.name + (":FILE" if any(parameter.name == "file" for parameter in parameters) else "")
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [`{title}`]"))
    assert re.search(rf"^## {title}$", PAGE, re.MULTILINE)
    assert f"| {made.metric} |" in row
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert dict(re.findall(r"`(\w+)=([^`]+)`", row)) == {name: str(value) for name, value in options.items()}
