"""`labkit`: parse the command line, do the command, and turn errors that a user can fix into one line.

Heavy imports wait inside the function that does a command, so that --help is instant.
"""

import argparse
import os
import sys

from labkit import __version__
from labkit.cli.commands import catalogue, course, evaluation, machine, runs, servers, site
from labkit.errors import MissingExtra

GROUPS = (catalogue, runs, machine, course, evaluation, servers, site)  # in the order of `labkit --help`


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        code = options.command(options) or 0
        sys.stdout.flush()  # a closed pipe raises here, and not at interpreter exit
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `labkit list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads the rest
        return 0
    except MissingExtra as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"labkit: the module {error.name!r} is missing; `labkit doctor` says what to do", file=sys.stderr)
        return 1
    except expected_errors() as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2


def expected_errors() -> tuple[type[Exception], ...]:
    """Errors that a user can cause and fix: shown as one line. Anything else is our bug, and keeps its traceback."""
    from labkit.errors import RecipeError
    from labkit.failures.catalogue import UnknownFailure
    from labkit.recording.run import RunError
    from labkit.training.data import DataError

    return DataError, UnknownFailure, RecipeError, RunError, OSError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="labkit", description="Break neural-network training on purpose, and learn why.")
    top.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for group in GROUPS:
        group.add(commands)
    return top
