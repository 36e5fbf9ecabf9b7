"""`labkit new topic/fault`: a failure file to fill in, and the file of its controls."""

import keyword
import re
from pathlib import Path

from labkit.diagnosis.diagnose import PRECEDENCE
from labkit.errors import ROOT, RecipeError, near
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import written_whole

TEMPLATES = Path(__file__).with_name("templates")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def write(asked: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a new mode, all of them or none; their paths, the mode's own file first."""
    topic, fault = names_in(asked)
    files = files_of(topic, fault, root)
    new_folders = {path.parent for path in files if not path.parent.exists()}
    written = []
    try:
        for path, text in files.items():
            with written_whole(path) as stream:
                stream.write(text.encode())
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink()
        for folder in new_folders:
            if folder.exists():
                folder.rmdir()
        raise
    return written


def names_in(asked: str) -> tuple[str, str]:
    """Topic and fault, if both are names that a new mode may have."""
    topic, slash, fault = asked.partition("/")
    if not slash or not all(NAME.fullmatch(name) and not keyword.iskeyword(name) for name in (topic, fault)):
        wanted = "TOPIC/FAULT, each of lowercase letters, digits and single underscores"
        raise RecipeError(f"expected {wanted}, got {asked!r}; for example learning_rate/learning_rate_forgotten")
    if topic not in PRECEDENCE:
        raise RecipeError(
            f"there is no topic {topic!r}. {near(topic, PRECEDENCE)} "
            "A new topic first gets its place in PRECEDENCE, in labkit/diagnosis/diagnose.py"
        )
    if fault in FAILURES:
        raise RecipeError(f"there is a failure mode {fault!r} already, in {FAILURES[fault].topic}; choose another name")
    return topic, fault


def files_of(topic: str, fault: str, root: Path) -> dict[Path, str]:
    """Path -> text of every file that a new mode needs; an error where one of them exists already."""
    tests = root / "tests"
    if not (tests / "failures").is_dir():
        raise RecipeError(
            f"a new failure mode is written into a clone, and this labkit is installed in {root} without its tests. "
            'In a clone, use pip install -e ".[dev]" and try again there'
        )
    package = root / "labkit" / "failures" / topic
    files = {
        package / f"{fault}.py": template("failure_mode", fault),
        tests / "failures" / f"test_{fault}.py": template("controls", fault),
    }
    # pytest knows a test file by its name alone, so it may stand nowhere else in tests/
    taken = [path for path in files if path.exists()] or list(tests.rglob(f"test_{fault}.py"))
    if taken:
        raise RecipeError(f"{taken[0].relative_to(root)} is there already; choose another name, or remove it")
    if not package.exists():
        files[package / "__init__.py"] = f'"""Failures of this topic: {topic.replace("_", " ")}."""\n'
    return files


def template(kind: str, fault: str) -> str:
    return (TEMPLATES / f"{kind}.py.txt").read_text(encoding="utf-8").replace("FAULT", fault)


def next_steps(written: list[Path], root: Path = ROOT) -> str:
    """What was written, and what to do next."""
    fault = written[0].stem
    return "\n".join(
        [
            *(f"written: {path.relative_to(root)}" for path in written),
            "Both files work as they are. Change them into your own mode, then try it:",
            f"    labkit run {fault} --seed 1 --out picture.png",
            f"    labkit clinic --contract --modes {fault}",
            f'    make test TESTS="tests/failures -k {fault}"',
            "    labkit lessons    # regenerates the catalogue page",
        ]
    )
