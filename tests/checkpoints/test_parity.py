"""Every family against transformers' own implementation."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from tests.checkpoints.parity import cases, cases_of, families, measure

BOUND = 1e-4


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize(
    ("family", "label", "config"), [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in cases()]
)
def test_logits_are_those_of_transformers(family, label, config, tmp_path, parity_rows):
    errors = measure(config, tmp_path)
    parity_rows(family, label, errors)
    assert errors.largest > 1, "logits so small that the bound says nothing"
    gaps = {name: value for name, value in asdict(errors).items() if name != "largest" and value is not None}
    assert {"prefill", "padded", "saved"} <= gaps.keys()
    assert not {name: value for name, value in gaps.items() if not value <= BOUND}


@pytest.mark.parametrize("family", families())
def test_every_family_has_models_to_test_it_with(family):
    assert isinstance(cases_of(family), dict)
