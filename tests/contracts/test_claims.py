"""Seam 12: every claim file holds one claim, called like its part, and its committed record is whole."""

from pathlib import Path

import pytest

from assay.claims import Claim, records
from assay.claims.run import card_of, failed, load, run
from assay.claims.verdicts import VERDICTS
from assay.core import registry

HOUSE = Path(__file__).resolve().parents[2]
CLAIMS = HOUSE / "src" / "assay" / "claims"
CARDS = registry.cards("claim")
RECORDED = [card for card in CARDS if card.module.startswith("assay.") and records.read(card)]

OWN = '''"""A claim of one's own.

seam: claim
row: Z9
source: nobody
object: mine
"""

from assay.claims import Evidence, claim


@claim("mine", row="Z9", minutes=0, seeds=2)
def mine(e: Evidence) -> None:
    e.exact("the sum", 1 + 1, equals={wanted})
    e.control("sees", 1.0, at_least=0.5)
    e.expect("more", [0.9 for seed in e.seeds], at_least=0.5)
'''


def name(card):
    return card.name


@pytest.mark.parametrize("card", CARDS, ids=name)
def test_a_claim_is_called_like_its_part_and_its_file(card):
    claim = load(card)
    assert isinstance(claim, Claim)
    assert claim.part == card.name == card.path.stem
    assert claim.row == card.row and card.row != "-"
    assert claim.says and claim.minutes > 0 and claim.seeds
    assert registry.find(claim.part).name == claim.part
    assert list((HOUSE / "tests").rglob(f"test_{claim.part}.py")), "the part has no test of its own"


def test_every_claim_file_has_a_card_and_every_row_one_claim():
    files = {
        path for path in CLAIMS.rglob("*.py") if path.parent != CLAIMS and path.name not in ("__init__.py", "common.py")
    }
    assert files <= {card.path for card in CARDS}
    rows = [card.row for card in CARDS]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("card", RECORDED, ids=name)
def test_a_committed_record_is_whole(card):
    record = records.read(card)
    assert record["row"] == card.row and record["part"] == card.name
    assert record["exact"] and all(entry["holds"] is True and entry["bound"] for entry in record["exact"])
    assert record["expect"] or record["report"]
    assert all(entry["verdict"] in VERDICTS and entry["wanted"] for entry in record["expect"])
    assert record["seeds"] and record["versions"] and record["commit"] and record["date"]
    assert record["dirty"] is False


@pytest.mark.parametrize(("wanted", "fails"), [(2, False), (3, True)])
def test_a_claim_runs_by_file_and_a_failed_exact_statement_fails_it(tmp_path, wanted, fails):
    file = tmp_path / "mine.py"
    file.write_text(OWN.replace("{wanted}", str(wanted)))
    record, path, _ = run(load(card_of(f"{file}:mine")), tmp_path / "results")
    assert path.is_file() and record["seeds"] == [0, 1]
    assert failed(record) is fails
    assert record["expect"][0]["verdict"] == "holds"
