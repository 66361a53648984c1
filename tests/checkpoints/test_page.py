"""docs/families.md is current, and what it calls refused is refused, in one line that names it."""

from __future__ import annotations

import pytest
from tests.checkpoints.page import ANY_FAMILY, PATH, page, refused_by
from tests.checkpoints.parity import cases_of, families

from assay.checkpoints import load
from assay.core import registry
from assay.core.errors import AssayError


def test_the_page_is_current():
    assert PATH.read_text(encoding="utf-8") == page(), "run python -m tests.checkpoints.page"


def test_there_are_twelve_families_and_more():
    assert len(families()) >= 12


_REFUSED = [
    pytest.param(family, label, entries, id=f"{family}-{label}")
    for family in families()
    for label, entries in refused_by(family).items()
]


@pytest.mark.parametrize(("family", "label", "entries"), _REFUSED)
def test_what_the_page_calls_refused_is_refused_and_named(family, label, entries):
    read, config = registry.get(family, "family").read, next(iter(cases_of(family).values()))
    read(config)
    with pytest.raises(AssayError) as error:
        read(config | entries)
    said = str(error.value)
    values = [str(v) for entry in entries.values() if isinstance(entry, dict) for v in entry.values()]
    assert "\n" not in said and "not supported" in said
    assert any(word in said for word in (*entries, *values)) or label.split()[0] in said


@pytest.mark.parametrize(("says", "make", "why"), ANY_FAMILY, ids=lambda value: None)
def test_what_no_family_loads(says, make, why, tmp_path):
    folder = make(tmp_path / "given")
    with pytest.raises(AssayError) as error:
        load(folder)
    assert why in str(error.value) and "\n" not in str(error.value)
