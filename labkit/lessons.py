"""What is made from the catalogue for people to read: the README's table of failure modes, and its check."""

from pathlib import Path

from labkit.failure_mode import FailureMode
from labkit.failures import FAILURES
from labkit.knob import RecipeError
from labkit.report import changes_in_words
from labkit.run import written_whole

README = Path("README.md")
BEGIN, END = "<!-- failure modes: made by `labkit lessons` -->", "<!-- end of failure modes -->"


def failure_table() -> str:
    """One row per failure mode, by topic."""
    lines = ["| mode | what is changed in the healthy twin | what it looks like |", "|---|---|---|"]
    topic = None
    for mode in FAILURES.values():
        if mode.topic != topic:
            topic = mode.topic
            lines.append(f"| **{topic.replace('_', ' ')}** | | |")
        lines.append(f"| `{mode.name}` | {_cell(_changed(mode))} | {_cell(mode.symptom)} |")
    return "\n".join(lines)


def _changed(mode: FailureMode) -> str:
    return changes_in_words(mode.sick, mode.healthy)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def renewed(text: str) -> str:
    """A text with its generated part made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise RecipeError(f"{README} has no place for the failure modes: expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{failure_table()}\n{END}{after}"


def renew(root: Path, check: bool = False) -> list[Path]:
    """Make the generated parts anew; returns the files that were, or with `check` would be, changed."""
    path = root / README
    text = path.read_text(encoding="utf-8")
    made = renewed(text)
    if made == text:
        return []
    if not check:
        with written_whole(path) as stream:
            stream.write(made.encode())
    return [path]
