"""What the commands share: how one is declared, arguments that several take, and JSON output."""

import argparse
import json
from collections.abc import Callable

from labkit.recording.files import json_ready


def command(commands, name: str, function: Callable, about: str, *, json: bool = True) -> argparse.ArgumentParser:
    """Declare a command: the function takes the parsed options and may return an exit code."""
    made = commands.add_parser(name, help=about, description=about)
    made.set_defaults(command=function)
    if json:
        made.add_argument("--json", action="store_true", help="print JSON")
    return made


def add_seed(made: argparse.ArgumentParser) -> None:
    made.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


def add_dataset(made: argparse.ArgumentParser) -> None:
    made.add_argument("--dataset", default="mnist", help="mnist (default) or cifar10")


def add_jobs(made: argparse.ArgumentParser, note: str = "") -> None:
    made.add_argument(
        "--jobs", type=int, default=1, metavar="N", help=f"number of training processes{note} (default: 1)"
    )


def show_json(values) -> None:
    print(json.dumps(json_ready(values), indent=2, default=str))
