"""Tables, CSV, pictures and strips made from a synthetic comparison."""

import csv
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.console import Console

from assay.core.errors import AssayError
from assay.report import format as say
from assay.report import picture, print_summary, write_csv
from assay.report.kept import kept_pictures, levels, runs
from assay.report.palette import LIGHT, styles
from assay.report.picture import ticks
from assay.report.summary import Passage


def printed(summary, width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    print_summary(summary, console)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100, 150])
def test_the_terminal_table_fits_its_width_and_cuts_no_name(summary, width):
    text = printed(summary, width)
    for row in (r for t in summary.tasks for r in t.rows):
        assert f"{row.name} " in text
    tables = [line for line in text.splitlines() if "MiB" in line and "holds" not in line]
    assert len(tables) == sum(len(t.rows) + 1 for t in summary.tasks) and max(map(len, tables)) <= width
    assert not any("…" in line for line in tables)


def test_the_terminal_says_what_was_skipped_noted_and_says_nothing(summary, run):
    text = printed(summary, 120)
    for said in (
        run["refused"][0]["why"],
        run["notes"][0]["says"],
        "variables says nothing here",
        "≈",
        summary.recommendation.says,
    ):
        assert said in text
    assert "3 of 1000 cells are not finished" in printed(replace(summary, finished=997, planned=1000), 120)


def test_the_csv_has_one_line_a_cell(summary, cells, tmp_path):
    write_csv(summary, tmp_path / "cells.csv")
    lines = list(csv.DictReader((tmp_path / "cells.csv").open(encoding="utf-8")))
    assert len(lines) == len(cells) and float(lines[0]["score"]) == cells[0]["score"] and lines[0]["kl"] == ""
    with pytest.raises(AssayError, match="could not write"):
        write_csv(summary, tmp_path / "cells.csv" / "below-a-file.csv")


def test_the_picture_is_well_formed_and_shows_each_point_once(summary):
    drawn = ET.fromstring(picture(summary))
    space = "{http://www.w3.org/2000/svg}"
    policies = len(styles(summary.policies))
    assert len(drawn.findall(f".//{space}polyline")) == len(summary.tasks) * policies
    texts = [t.text for t in drawn.iter(f"{space}text")]
    assert all(t.name in texts for t in summary.tasks) and all(p in texts for p in styles(summary.policies))


def test_points_lie_inside_the_picture(summary):
    drawn = ET.fromstring(picture(summary))
    for line in drawn.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert 40 <= x <= 330 and 40 <= y <= 212


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0] and ticks(14.2, 25.3) == [16, 18, 20, 22, 24]


def test_levels_lose_nothing_held():
    assert levels([0, 1, 0.5, 0.3, 0.99]) == "08428"
    assert levels([0.001]) == "1"  # hardly held is not the same as not held


def test_stretches_of_a_passage_join_what_is_held_alike_and_keep_the_answer_apart():
    passage = Passage(10, (2, 4), ("a", " b", " c", " d", " e"), "00999")
    assert runs(passage) == [("a b", "0", False), (" c d", "9", True), (" e", "9", False)]


def test_one_picture_a_task_in_the_order_of_the_grid_with_the_text_it_lies_over(summary):
    shown = kept_pictures(summary)
    assert [k["task"] for k in shown] == [t.name for t in summary.tasks]
    assert [c["name"] for c in shown[0]["cells"]][:3] == ["random@0.5", "random@0.25", "random@0.1"]
    for kept in shown:
        assert len(kept["pieces"]) == kept["tokens"] == 1000
        for cell in kept["cells"]:
            assert (
                len(cell["shades"]) == 1000
                and cell["layers"] == [5, 11, 17]
                and {len(b) for b in cell["bins"]} == {512}
            )


def test_policies_differ_in_colour_and_shape_and_random_is_grey():
    found = styles(("full", "random", *(f"p{i}" for i in range(10))))
    assert "full" not in found and found["random"]["light"] not in LIGHT
    assert len({(s["light"], s["symbol"]) for s in found.values()}) == 11


def test_numbers_are_written_for_people():
    assert (say.bytes_text(2**20), say.bytes_text(900), say.bytes_text(None)) == ("1 MiB", "900 B", "–")
    assert (say.seconds_text(0.012), say.seconds_text(3.4), say.seconds_text(600)) == ("12 ms", "3.40 s", "10.0 min")
    assert [say.signed(v) for v in (-0.5, 0.0234, -1e-5)] == ["−0.50", "+0.023", "0"]
