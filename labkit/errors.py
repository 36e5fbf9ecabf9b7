"""Errors that say what was expected, what was given and what to do next."""

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

DISTRIBUTION = "failure-mode-labkit"  # the package index has an unrelated `labkit`
ROOT = Path(__file__).resolve().parents[1]  # the clone, or site-packages


class RecipeError(ValueError):
    """Unknown entry or invalid value of a recipe. The message says what is allowed."""


FEW = 20  # names shown of a list that is too long to be shown in full


def near(name: object, known: Iterable[object]) -> str:
    """'Did you mean ...?' if a known name is similar, else the list of known names."""
    names = sorted(str(item) for item in known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    more = f" and {len(names) - FEW} more" if len(names) > 2 * FEW else ""
    return f"Known: {', '.join(names[:FEW] if more else names)}{more}."


class MissingExtra(ModuleNotFoundError):
    """A feature was used whose packages are not installed; the message names the extra and the install command."""


def optional(module: str, *, extra: str, feature: str) -> ModuleType:
    """Import a module that only this feature needs; `extra` is the name in pyproject.toml."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        advice = f"Install the extra {extra!r}: {install(extra)}"
        raise MissingExtra(f"{feature} needs {missing}, which is not installed. {advice}", name=missing) from error


def install(extra: str = "", root: Path = ROOT) -> str:
    """The command that installs labkit, or one of its extras, the way this labkit was installed."""
    if extra and not is_clone(root):
        return f'pip install "{DISTRIBUTION}[{extra}]"'
    return in_clone(clone_command(extra), root)


def in_clone(command: str, root: Path = ROOT) -> str:
    """The command with the folder to run it in; a wheel does not know of any clone."""
    return f"in {root if is_clone(root) else 'a clone of labkit'}: {command}"


def is_clone(root: Path) -> bool:
    return (root / "constraints.txt").is_file()


def clone_command(extra: str = "") -> str:
    return "pip install -e " + (f'".[{extra}]"' if extra else ".") + " -c constraints.txt"
