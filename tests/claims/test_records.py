"""Records are whole, say where they come from, and clean ones are never replaced by dirty ones."""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from assay.claims import Evidence, records
from assay.core.errors import AssayError
from assay.core.registry import Card

CARD = Card("thing", "claim", "Z1", "", "", "thing", (), "", Path("thing.py"))


def record(*, dirty=False, least=0.5, gap=0.0):
    e = Evidence([0, 1])
    e.exact("gap", gap, below=1e-6)
    e.control("sees", 1.0, at_least=0.5)
    e.expect("closes", 0.7, at_least=least)
    e.report("odd", float("nan"))
    origin = records.provenance(__file__) | {"dirty": dirty}
    return {"row": "Z1", "part": "thing", **e.findings(), "seconds": 0.1, **origin}


def test_a_record_has_every_field_and_is_read_back(tmp_path):
    path, notes = records.write(record(), tmp_path)
    again = records.read(CARD, tmp_path)
    assert path == tmp_path / "Z1.json" and notes == []
    wanted = {
        "row",
        "part",
        "exact",
        "expect",
        "report",
        "seeds",
        "seconds",
        "commit",
        "dirty",
        "versions",
        "machine",
        "date",
    }
    assert wanted <= again.keys()
    assert again["report"][0]["value"] == "nan"  # JSON has no NaN
    assert again["versions"]["torch"] and again["machine"]
    assert [file.name for file in tmp_path.iterdir()] == ["Z1.json"]


def test_a_dirty_record_says_so_and_never_replaces_a_clean_one(tmp_path):
    path, notes = records.write(record(dirty=True), tmp_path)
    assert path.name == "Z1.json" and "dirty" in notes[0]
    path, notes = records.write(record(), tmp_path)
    assert path.name == "Z1.json" and notes == []
    path, notes = records.write(record(dirty=True, gap=1.0), tmp_path)
    assert path.name == "Z1.dirty.json" and "stays" in notes[1]
    assert records.read(CARD, tmp_path)["exact"][0]["holds"] is True


def test_a_wanted_value_that_changed_is_listed_for_good(tmp_path):
    records.write(record(), tmp_path)
    _, notes = records.write(record(least=0.1), tmp_path)
    assert "revised" in notes[0]
    records.write(record(least=0.1), tmp_path)
    assert records.read(CARD, tmp_path)["revised"] == [{"says": "closes", "was": "at least 0.5", "now": "at least 0.1"}]


def test_a_broken_file_is_reported_when_read_and_replaced_when_written(tmp_path):
    (tmp_path / "Z1.json").write_text("{")
    with pytest.raises(AssayError, match="Z1.json is no record"):
        records.read(CARD, tmp_path)
    _, notes = records.write(record(), tmp_path)
    assert "replaced" in notes[0] and records.read(CARD, tmp_path)


def test_no_record_is_none(tmp_path):
    assert records.read(replace(CARD, row="Z2"), tmp_path) is None


def test_a_record_at_a_glance():
    whole = json.loads(json.dumps(records._finite(record())))
    assert records.verdict(None) == "not run"
    assert records.verdict(whole) == "holds"
    assert records.verdict(whole | {"expect": [*whole["expect"], {"verdict": "differs"}]}) == "1 holds, 1 differs"
    assert records.verdict(whole | {"expect": []}) == "exact holds"
    assert records.verdict(record(gap=1.0)) == "exact fails"


def test_age_in_the_largest_unit():
    now = datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC)
    assert records.age({"date": "2026-01-07T12:00:00Z"}, now) == "2 d"
    assert records.age({"date": "2026-01-09T21:00:00Z"}, now) == "3 h"
    assert records.age({"date": "2026-01-09T23:59:30Z"}, now) == "now"
    assert records.age(None) == "-"
