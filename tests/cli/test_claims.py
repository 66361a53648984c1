"""`assay claims` and `assay claim`: verdicts at a glance, records on disk, exit code 1 for a failed exact statement."""

import json

import pytest

from assay import cli

OWN = '''"""A claim of one's own.

seam: claim
row: Z9
source: nobody
object: mine
"""

from assay.claims import Evidence, claim


@claim("mine", row="Z9", minutes=0.1, seeds=3)
def mine(e: Evidence) -> None:
    e.exact("the sum", 1 + 1, equals=WANTED)
    e.control("sees", [1.0, 1.0, 1.1], at_least=0.5)
    e.expect("more", [0.2, 0.9, 0.5], at_least=0.5)
    e.report("table", {"x": list(range(100))})
'''


def run(words, capsys):
    code = 0
    try:
        cli.main(words)
    except SystemExit as end:
        code = end.code or 0
    return code, *capsys.readouterr()


@pytest.mark.parametrize(("wanted", "code"), [(2, 0), (3, 1)])
def test_a_claim_writes_its_record_and_fails_with_its_exact_statements(tmp_path, capsys, wanted, code):
    file = tmp_path / "mine.py"
    file.write_text(OWN.replace("WANTED", str(wanted)))
    ended, out, err = run(["claim", f"{file}:mine", "--results", str(tmp_path / "out")], capsys)
    assert ended == code
    record = json.loads((tmp_path / "out" / "Z9.json").read_text())
    assert record["exact"][0]["holds"] is (code == 0)
    assert "inconclusive" in out and "Z9.json" in out
    assert ("which is a bug" in err) is (code == 1)


def test_an_experiment_that_raises_writes_nothing(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(OWN.replace("WANTED", "1 / 0"))
    with pytest.raises(ZeroDivisionError):
        run(["claim", f"{file}:mine", "--results", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


def test_something_that_is_no_claim_is_refused(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("mine = 3\n")
    code, _, err = run(["claim", f"{file}:mine"], capsys)
    assert code == 2 and "is no claim" in err


def test_an_unknown_row_is_one_line(capsys):
    code, _, err = run(["claim", "Z99"], capsys)
    assert code == 2 and "unknown claim 'Z99'" in err


def test_the_list_has_a_line_for_each_claim_and_a_page_for_the_documentation(tmp_path, capsys):
    from assay.core import registry

    known = registry.cards("claim")
    _, out, _ = run(["claims", "--results", str(tmp_path)], capsys)
    assert len(out.splitlines()) == 1 + len(known)
    assert out.count("not run") == len(known)
    _, out, _ = run(["claims", "--markdown", "--results", str(tmp_path)], capsys)
    assert out.startswith("# Rows") and sum(line.startswith("| ") for line in out.splitlines()) == 2 + len(known)
