"""Parts written outside the package pass `assay check` and take part in models, generation and comparisons, with no file touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.compositions.models import GATED, SOFTMAX, built, some_tokens
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.config import BlockConfig, Spec
from assay.core.generation import Options, generate_ids

MINE = Path(__file__).parent / "mine" / "outside.py"


@pytest.mark.parametrize("part", ["RunningMean", "EveryOther", "Newest"])
def test_a_part_of_one_s_own_passes_its_contract(part, capfd):
    done = CliRunner().invoke(app, ["check", f"{MINE}:{part}"])
    said = capfd.readouterr().out
    assert done.exit_code == 0, said
    assert " passed" in said


def test_a_part_that_breaks_its_law_is_told_so(tmp_path, capfd):
    (tmp_path / "bad.py").write_text(MINE.read_text().replace("held.seen[:, None]", "0 * held.seen[:, None]"))
    done = CliRunner().invoke(app, ["check", f"{tmp_path}/bad.py:RunningMean", "--quick"])
    assert done.exit_code == 1
    assert "test_any_cut_equals_the_whole" in capfd.readouterr().out


@torch.no_grad()
def test_a_mixer_a_policy_and_a_reader_of_one_s_own_run_together():
    model = built(*[BlockConfig(mixer, GATED) for mixer in (Spec(f"{MINE}:RunningMean"), SOFTMAX, SOFTMAX)])
    tokens = some_tokens(60, batch=2)
    state = model.start(2)
    pieces = torch.cat([model(piece, state)[0] for piece in tokens.split([40, 1, 19], 1)], 1)
    torch.testing.assert_close(pieces, model(tokens)[0], rtol=0, atol=1e-9)
    rows = [some_tokens(80)[0].tolist()]
    plain = generate_ids(model, rows, Options(max_tokens=8))
    every = f"{MINE}:EveryOther"
    assert generate_ids(model, rows, Options(max_tokens=8, cache=f"{every}@1")) == plain
    ours = generate_ids(
        model, rows, Options(max_tokens=8, cache=f"twinkv({every})@0.6", attention=f"{MINE}:Newest(pages=2, size=8)")
    )
    assert len(ours[0]) == 8
