"""`assay bench` hands over what was asked; what it measures is tested in tests/bench/speed."""

import pytest

from assay import cli
from assay.bench import speed


class Found:
    def print(self):
        print("ratios")


@pytest.fixture
def asked(monkeypatch):
    calls = []

    def take(model, **settings):
        settings.pop("progress")("half way")
        calls.append((model, settings))
        return Found()

    monkeypatch.setattr(speed, "run", take)
    return calls


def test_every_option_arrives(asked, capsys, tmp_path):
    words = "bench m --storages bfloat16 --prompt 8 --tokens 4 --prefill 64 --rounds 2 --threads 1 --small --out x.json"
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert not end.value.code and capsys.readouterr().out == "ratios\n"
    model, settings = asked[0]
    assert (model, str(settings.pop("out"))) == ("m", "x.json")
    assert settings == {
        "storages": ("bfloat16",),
        "prompt": 8,
        "tokens": 4,
        "prefill": 64,
        "rounds": 2,
        "thread_count": 1,
        "tiny": True,
    }


def test_numbers_out_of_range_are_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "gemma-3-270m", "--rounds", "0"])
    assert end.value.code == 2 and "1 round" in capsys.readouterr().err
