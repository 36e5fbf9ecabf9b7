"""The rooms of the package import in one direction, as pyproject.toml says; and each is named in CONTRIBUTING."""

import ast
import importlib.util
import os
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers import ROOT
from importlinter.cli import EXIT_STATUS_ERROR, EXIT_STATUS_SUCCESS, lint_imports

import labkit

LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
LAYERS = [room for layer in LINTER["contracts"][0]["layers"] for room in layer.split(" | ")]


def test_imports_point_one_way(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == EXIT_STATUS_SUCCESS


def test_every_room_has_its_place():
    rooms = {f"labkit.{module.name}" for module in pkgutil.iter_modules(labkit.__path__)}
    assert rooms - {"labkit.__main__"} == set(LAYERS)


@pytest.mark.parametrize("room", LAYERS)
def test_the_init_of_a_room_says_its_purpose_and_imports_nothing(room):
    """An `__init__` that imports would make every import of the room heavy."""
    found = importlib.util.find_spec(room)
    if found.submodule_search_locations and room != "labkit.adapters":
        docstring, *rest = ast.parse(Path(found.origin).read_text(encoding="utf-8")).body
        assert isinstance(docstring.value, ast.Constant)
        assert not rest or room == "labkit.tools"  # which loads `labkit.tools.causality` and the like on first use
        imported = [node for node in rest if isinstance(node, ast.Import | ast.ImportFrom)]
        assert [ast.unparse(node) for node in imported] in ([], ["import importlib"])


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("import labkit.diagnosis.watch", "labkit/recording/upwards.py"),
        ("import torch", "labkit/drawing/upwards.py"),
        ("def later():\n    from labkit.training.recipe import Recipe", "labkit/recording/upwards.py"),
    ],
    ids=["a higher room", "torch in drawing", "inside a function"],
)
def test_an_import_that_points_up_is_refused(tmp_path, monkeypatch, line, file):
    copy = tmp_path / "labkit"
    for path in (ROOT / "labkit").rglob("*.py"):
        there = copy / path.relative_to(ROOT / "labkit")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / file).write_text(line + "\n", encoding="utf-8")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == EXIT_STATUS_ERROR and "upwards" in done.stdout
