"""The command line: parses words, calls the library, and turns what went wrong into one clear line.

Exit codes: 0 done, 1 an exact statement of a claim fails (or a bug), 2 the input cannot be used, 130 stopped by Ctrl-C.
"""

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from assay.core.errors import AssayError


def main(words: Sequence[str] | None = None) -> None:
    """Run one command and exit. `--debug` anywhere among the words shows tracebacks in place of one line."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        from assay.cli.app import UsageError, app

        try:
            code = app(args=words, prog_name="assay", standalone_mode=False)
        except UsageError as error:
            _misused(error)
        if code == 130:
            _stopped(words)
        sys.exit(code)
    except KeyboardInterrupt:
        _stopped(words)
    except AssayError as error:
        if debug:
            raise
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the interpreter's last flush is quiet
        sys.exit(1)
    except OSError as error:
        if debug or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" while writing {error.filename}" if error.filename else ""
        _fail(f"the disk is full{where}; free some space and run the same command again")


def _misused(error: Exception) -> NoReturn:
    """One line for words that are no command, option or value."""
    said = error.format_message()
    if not said:  # no words at all: the help is printed already
        sys.exit(2)
    where = error.ctx.command_path if error.ctx is not None else "assay"
    _fail(f"{' '.join(said.split()).rstrip('.')}; see {where} --help")


def _fail(why: str) -> NoReturn:
    print(f"assay: {why}", file=sys.stderr)
    sys.exit(2)


def _stopped(words: Sequence[str]) -> NoReturn:
    mend = ""
    if words[:1] == ["compare"]:
        mend = f"; every finished cell is kept, go on with: assay {shlex.join(words)}"
    print(f"\nassay: stopped{mend}", file=sys.stderr)
    sys.exit(130)
