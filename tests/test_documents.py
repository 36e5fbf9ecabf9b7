"""The documents: their Python runs, their commands exist, and their links lead somewhere."""

import re
import shlex

import pytest
from helpers import ROOT

from labkit.cli.main import parser
from labkit.failures.catalogue import FAILURES

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "labkit/diagnosis/README.md",
    "labkit/course/README.md",
    "labkit/panels/README.md",
)
GENERATED = ("notebooks/README.md", "labkit/failures/README.md", "labkit/cli/README.md")


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
    assert set(opened) <= {"python"}


@pytest.mark.parametrize("name", (*DOCUMENTS, *GENERATED, "datasets/README.md", "CHANGELOG.md"))
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if "://" not in link and not ((ROOT / name).parent / link).exists()] == []


def test_rooms_in_the_map_exist():
    rooms = re.findall(r"^\| `(\w+)/` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    inside = {path.parent.name for path in (ROOT / "labkit").glob("*/__init__.py")}
    assert set(rooms) == inside - {"adapters"}  # which stands beside panels in the map


def test_files_that_the_documents_name_exist():
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        named = re.findall(r"`((?:labkit|tests|solutions|notebooks)/[\w/.]+\.(?:py|md|json|png))`", text)
        assert [path for path in named if "NN" not in path and not (ROOT / path).exists()] == [], name


def test_modes_in_the_commands_of_the_documents_exist():
    named = {word for line in commands() for word in re.findall(r"labkit (?:run|explain) (\w+)", line)}
    assert named and named <= set(FAILURES)


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_documents_exist(command):
    try:
        assert parser().parse_args(shlex.split(command)[1:]).command
    except SystemExit as end:
        assert end.code == 0, "only --help and --version end well"
