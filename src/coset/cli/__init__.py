"""The command line: one module a command.

Nothing here or in the command modules imports torch before a command runs: help is instant.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

from coset.errors import CosetError
from coset.version import __version__

if TYPE_CHECKING:
    from cyclopts import App

COMMANDS: dict[str, str] = {
    "align": "coset.cli.align:align",
    "demo": "coset.cli.demo:demo",
    "inspect": "coset.cli.inspect:inspect",
    "reconstruct": "coset.cli.reconstruct:reconstruct",
    "report": "coset.cli.report:report",
    "study": "coset.cli.study:study",
    "zoo": "coset.cli.zoo:zoo",
}
"""Every command and the function that runs it."""

REFUSED = 2
INTERRUPTED = 130
CLOSED = 141


def build_app() -> "App":
    """The application with all its commands, whose modules import nothing slow."""
    from cyclopts import App

    app = App(
        name="coset",
        help="Bayesian deep learning modulo symmetries.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, path in COMMANDS.items():
        module, function = path.split(":")
        app.command(getattr(import_module(module), function), name=name)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code, which a command may choose.

    Bad input gives code 2 and one line on standard error, never a traceback.
    """
    from cyclopts import CycloptsError

    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # terminals that have no × or … get a question mark
            stream.reconfigure(errors="replace")
    try:
        code = build_app()(words, print_error=False, exit_on_error=False, verbose=False)
        print(end="", flush=True)  # there may be no standard output at all
    except CycloptsError as error:
        return _refuse(f"{_one_line(error)} Try: {_help_command(words)}")
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error.__context__ or error, BrokenPipeError):  # tables end the program
            return _refuse(_one_line(error))
        # who reads has seen enough: nothing is wrong, and nothing is said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except (CosetError, OSError) as error:
        return _refuse(_one_line(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _one_line(error: BaseException) -> str:
    if isinstance(error, SystemExit):  # of a user's network: nothing here leaves this way
        return f"got code that ended the program (SystemExit: {error}); needed code that returns"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"got {where}{error.strerror or error}; needed a place to read and write"
    return " ".join(str(error).split())


def _help_command(words: Sequence[str]) -> str:
    return " ".join(["coset", *[word for word in words[:1] if word in COMMANDS], "--help"])


def _refuse(line: str) -> int:
    print(f"coset: {line}", file=sys.stderr)
    return REFUSED
