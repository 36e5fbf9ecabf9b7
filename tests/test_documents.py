"""README and CONTRIBUTING: their Python runs, and their commands exist."""

import re
import shlex
from pathlib import Path

import pytest

from labkit.__main__ import parser
from labkit.failures import FAILURES

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md")


def fences() -> list:
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE), 1):
            found.append(pytest.param(code, id=f"{name}-{number}"))
    return found


def commands() -> list[str]:
    """Every `labkit ...` of the documents, in the text and in indented blocks, without comments."""
    found = []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        found += re.findall(r"`(labkit [^`]+)`", text)
        found += re.findall(r"^    (?:\$ |\S*/)?(labkit .+)$", text, re.MULTILINE)
    return sorted({line.split("  #")[0].strip() for line in found})


@pytest.mark.slow
@pytest.mark.parametrize("code", fences())
def test_python_in_the_documents_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "fence", "exec"), {"__name__": "fence"})


def test_there_are_fences_and_commands():
    assert len(fences()) >= 2 and len(commands()) >= 15


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_fence_is_python_so_that_none_goes_unrun(name):
    opened = re.findall(r"^```(.*)$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)[::2]
    assert set(opened) == {"python"}


def test_modes_in_the_commands_of_the_documents_exist():
    named = {word for line in commands() for word in re.findall(r"labkit (?:run|explain) (\w+)", line)}
    assert named and named <= set(FAILURES)


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_documents_exist(command):
    try:
        assert parser().parse_args(shlex.split(command)[1:]).command
    except SystemExit as end:
        assert end.code == 0, "only --help and --version end well"
