"""Evidence: exact statements, expectations with and without power, and what JSON receives."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from assay.claims import Evidence


@pytest.fixture
def e():
    return Evidence(range(5))


def test_exact_statements_hold_or_fail_by_their_bound(e):
    assert e.exact("small", torch.tensor(1e-7), below=1e-6)
    assert not e.exact("not strictly below", 1e-6, below=1e-6)
    assert not e.exact("not a number", math.nan, below=1.0)
    assert e.exact("every one", [0.1, 0.2], at_most=0.2)
    assert not e.exact("one of them", [0.1, 0.3], at_most=0.2)
    assert not e.exact("none of them", [], at_most=0.2)
    assert e.exact("count", np.int64(3), equals=3)
    assert e.exact("kept", torch.tensor([1, 2]), equals=[1, 2])
    assert not e.exact("a check where a count is due", True, equals=1)
    assert [entry["holds"] for entry in e.findings()["exact"]] == [
        True,
        False,
        False,
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert e.findings()["exact"][0]["bound"] == "below 1e-06"


def test_an_exact_statement_needs_one_bound(e):
    for bounds in ({}, {"below": 1, "at_least": 0}):
        with pytest.raises(ValueError, match="one of"):
            e.exact("says", 1, **bounds)


def test_values_of_paired_seeds_make_their_own_interval(e):
    e.control("full beats nothing", [0.9, 0.8, 0.9, 0.95, 0.85], at_least=0.2)
    e.expect("clear", [0.6, 0.7, 0.65, 0.7, 0.66], at_least=0.5, paper="most")
    e.expect("wide", [0.1, 0.9, 0.5, 0.4, 0.8], at_least=0.5)
    e.expect("off", [0.1, 0.12, 0.09, 0.1, 0.1], at_least=0.5)
    e.expect("lone", 0.7, at_least=0.5)
    e.expect("given", 0.7, at_least=0.5, interval=(0.4, 0.9))
    e.expect("broken", [0.7, math.nan], at_least=0.5)
    found = {entry["says"]: entry for entry in e.findings()["expect"]}
    assert {says: entry["verdict"] for says, entry in found.items()} == {
        "clear": "holds",
        "wide": "inconclusive",
        "off": "differs",
        "lone": "holds",
        "given": "inconclusive",
        "broken": "inconclusive",
    }
    assert found["clear"]["value"] == pytest.approx(0.662)
    assert found["clear"]["interval"][0] < 0.662 < found["clear"]["interval"][1]
    assert found["clear"]["wanted"] == "at least 0.5" and found["clear"]["paper"] == "most"
    assert found["lone"]["interval"] is None


def test_without_a_passing_control_every_verdict_is_underpowered(e):
    e.expect("clear", [0.6, 0.7, 0.65], at_least=0.1)
    assert e.findings()["expect"][0]["verdict"] == "underpowered"
    assert not e.control("sees nothing", [0.0, 0.1, -0.1], at_least=0.2)
    assert e.findings()["expect"][0]["verdict"] == "underpowered"


def test_one_failed_control_takes_the_power_of_its_own_expectations_only(e):
    sees = e.control("on the trained model", 0.9, at_least=0.2)
    blind = e.control("on the other model", 0.0, at_least=0.2)
    e.expect("trained", 0.9, at_least=0.5, powered=sees)
    e.expect("other", 0.9, at_least=0.5, powered=blind)
    e.expect("both", 0.9, at_least=0.5)
    assert [entry["verdict"] for entry in e.findings()["expect"]] == ["holds", "underpowered", "underpowered"]


def test_power_cannot_be_asserted_without_a_control(e):
    e.expect("trained", 0.9, at_least=0.5, powered=True)
    assert e.findings()["expect"][0]["verdict"] == "underpowered"


def test_a_statement_is_said_once(e):
    e.report("table", 1)
    with pytest.raises(ValueError, match="said once"):
        e.expect("table", 1, at_least=0)


def test_an_upside_down_interval_and_no_value_are_refused(e):
    with pytest.raises(ValueError, match="upside down"):
        e.expect("says", 1, at_least=0, interval=(2, 1))
    with pytest.raises(ValueError, match="no value"):
        e.expect("says again", [], at_least=0)


def test_reports_take_tensors_arrays_and_dataclasses(e):
    @dataclass
    class Row:
        name: str
        kept: torch.Tensor

    e.report("table", {1: Row("a", torch.tensor([1, 2])), "b": (np.float32(0.5), {2, 1})})
    value = e.findings()["report"][0]["value"]
    assert json.loads(json.dumps(value)) == {"1": {"name": "a", "kept": [1, 2]}, "b": [0.5, [1, 2]]}


def test_seeding_repeats_every_generator(e):
    drawn = []
    for _ in range(2):
        e.seed(3)
        drawn.append((torch.rand(1).item(), np.random.rand()))
    assert drawn[0] == drawn[1]
