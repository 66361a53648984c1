"""`assay parts`, `assay tasks`, `assay models`."""

import pytest
from typer.testing import CliRunner

from assay.cli.app import app
from assay.cli.tables import markdown, plain
from assay.core import registry
from assay.core.errors import AssayError


def lines(*words):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


def test_parts_lists_every_part_once_and_no_claim():
    names = [line.split()[0] for line in lines("parts")[1:]]
    assert names == [card.name for card in registry.cards() if card.seam != "claim"]


def test_parts_of_one_seam_and_of_one_room():
    assert all(line.split()[1] == "mixer" for line in lines("parts", "--seam", "mixer")[1:])
    assert any(line.startswith("softmax ") for line in lines("parts", "--room", "mixers"))
    assert lines("parts", "--room", "mixers") == lines("parts", "--room", "parts/mixers")


def test_an_unknown_seam_or_room_says_which_there_are():
    for option in ("--seam", "--room"):
        with pytest.raises(AssayError, match="there are .*mixer"):
            lines("parts", option, "nothing")


def test_tasks_lists_the_tasks_and_how_to_name_a_file():
    text = "\n".join(lines("tasks"))
    for card in registry.cards("task"):
        assert card.name in text
    assert "text:FILE" in text


def test_plain_tables_align_and_markdown_escapes():
    assert plain(["a", "b"], [["xxx", "1"], ["y", ""]]) == "a    b\nxxx  1\ny"
    assert markdown(["a"], [["x|y"]]) == "| a |\n| --- |\n| x\\|y |"


def test_models_lists_what_is_bundled_and_how_to_name_anything_else(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    text = lines("models")
    assert any(line.startswith("gemma-3-270m ") for line in text)
    assert any(".gguf" in line and "hub id" in line for line in text)
    assert "gemma3" in text[-1]
