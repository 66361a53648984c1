"""The page about sites: its table is that of the code, its examples run and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import torch
from tests.core.tiny import tiny, tokens

from assay.core.sites import canonical, record

PAGE = (Path(__file__).parents[2] / "docs" / "sites.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]


@torch.no_grad()
def test_the_table_has_every_site_with_its_shape_in_the_order_of_the_pass():
    model = tiny(windows=(None,), block={"norms": "sandwich"})
    documented = [row[0].replace("N", "0") for row in ROWS]
    assert sorted(documented) == sorted(model.site_names())
    state = model.start(3)
    model(tokens(3, 5), state)
    with record(model, "*") as tape:
        model(tokens(3, 7), state)
    assert list(tape) == documented
    sizes = {"batch": 3, "tokens": 7, "keys": 12, "width": 16, "heads": 4, "kv_heads": 2, "dim": 6, "hidden": 20}
    sizes |= {"vocab": 31, "1": 1}
    for name, row in zip(documented, ROWS, strict=True):
        assert tape[name].shape == tuple(sizes[axis] for axis in row[1].split()), name


def test_the_other_names_of_the_table_mean_its_sites():
    named = [(row[3], row[0]) for row in ROWS if row[3]]
    assert len(named) > 15
    for theirs, ours in named:
        assert canonical(theirs.replace("N", "0")) == ours.replace("N", "0")


def test_the_examples_run_and_print_what_the_page_says():
    blocks = re.findall(r"```(python)?\n(.*?)```", PAGE, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "", "python", "", "python", ""]
    names: dict[str, object] = {}
    for (_, code), (_, printed) in zip(blocks[::2], blocks[1::2], strict=True):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        assert out.getvalue() == printed
