"""What every command owes: a quick start without torch, one clear line and exit code 2, Ctrl-C as 130."""

import errno
import resource
import subprocess
import sys

import pytest

from assay import cli
from assay.cli import lists
from assay.core.errors import AssayError, ExpressionError

COUNT = """
import sys
from assay.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.mark.timed
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["parts"], ["tasks"], ["claims"], ["compare", "--help"], ["bench", "--help"]]
)
def test_starts_in_half_a_second_without_torch(words):
    seconds = []
    for _ in range(6):  # the best of a few, and the processor's seconds, since other work may share the machine
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", COUNT, *words], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        if seconds[-1] < 0.5:
            break
    assert min(seconds) < 0.5


def test_help_names_every_command():
    done = subprocess.run([sys.executable, "-m", "assay.cli", "--help"], capture_output=True, text=True)
    for command in ("compare", "report", "bench", "parts", "tasks", "models", "claims", "claim"):
        assert f" {command} " in done.stdout


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process, with `assay tasks` replaced by something that raises; returns code, out, err."""

    def call(words, raises=None):
        if raises is not None:

            def fail(seam):
                raise raises

            monkeypatch.setattr(lists.registry, "cards", fail)
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        return end.value.code, *capsys.readouterr()

    return call


def test_an_error_of_the_user_is_one_line_and_exit_code_2(run):
    code, out, err = run(["tasks"], AssayError("budget '2': a ratio lies in (0, 1]"))
    assert (code, out, err) == (2, "", "assay: budget '2': a ratio lies in (0, 1]\n")


def test_a_malformed_expression_keeps_its_caret(run):
    code, _, err = run(["tasks"], ExpressionError("snapkv(", 6, "this bracket is not closed by )"))
    assert code == 2
    assert err == "assay: this bracket is not closed by )\n  snapkv(\n        ^\n"


@pytest.mark.parametrize("words", [["--debug", "tasks"], ["tasks", "--debug"]])
def test_debug_shows_the_traceback(words, monkeypatch):
    def fail(seam):
        raise AssayError("why")

    monkeypatch.setattr(lists.registry, "cards", fail)
    with pytest.raises(AssayError, match="why"):
        cli.main(words)


def test_a_full_disk_is_one_line(run):
    code, _, err = run(["tasks"], OSError(errno.ENOSPC, "No space left on device", "runs/x"))
    assert code == 2 and err.startswith("assay: the disk is full while writing runs/x")
    assert err.count("\n") == 1


def test_a_bug_is_not_dressed_up_as_the_users_error(monkeypatch):
    def fail(seam):
        raise KeyError("bug")

    monkeypatch.setattr(lists.registry, "cards", fail)
    with pytest.raises(KeyError):
        cli.main(["tasks"])


def test_ctrl_c_is_130(run):
    code, _, err = run(["tasks"], KeyboardInterrupt())
    assert code == 130 and err == "\nassay: stopped\n"


def test_ctrl_c_in_a_comparison_says_how_to_go_on(capsys):
    with pytest.raises(SystemExit) as end:
        cli._stopped(["compare", "gemma-3-270m", "twinkv(snapkv)"])
    assert end.value.code == 130
    assert "go on with: assay compare gemma-3-270m 'twinkv(snapkv)'" in capsys.readouterr().err


def test_words_that_are_no_command_or_option_are_exit_code_2(run):
    for words in (
        ["compere"],
        ["parts", "--sean", "policy"],
        ["claim"],
        ["compare", "m", "--examples", "x"],
        ["bench", "--rounds"],
    ):
        code, _, err = run(words)
        assert code == 2 and err.startswith("assay: ") and err.count("\n") == 1 and "--help" in err
    code, out, err = run([])
    assert code == 2 and "Usage: " in out and not err


def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m assay.cli parts | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
