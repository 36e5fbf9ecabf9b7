"""`labkit new`: what it writes works, becomes a mode that keeps the contract; bad names write nothing."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from labkit.cli import new
from labkit.diagnosis.diagnose import PRECEDENCE
from labkit.errors import RecipeError

FAULT = "classes_counted_from_one"


def in_copy(copy: Path, *words: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_author_fills_it_in_and_the_contract_accepts_it(tmp_path):
    for folder in ("labkit", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    answer = in_copy(tmp_path, "-m", "labkit", "new", f"code/{FAULT}")
    assert (answer.returncode, answer.stderr) == (0, "")
    mode, controls = (
        tmp_path / "labkit" / "failures" / "code" / f"{FAULT}.py",
        tmp_path / "tests" / "failures" / f"test_{FAULT}.py",
    )
    assert all(f"written: {path.relative_to(tmp_path)}\n" in answer.stdout for path in (mode, controls))
    assert in_copy(tmp_path, "-m", "ruff", "check", str(mode), str(controls)).returncode == 0
    assert in_copy(tmp_path, "-m", "ruff", "format", "--check", str(mode), str(controls)).returncode == 0

    checks = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"tests/failures/test_{FAULT}.py"]
    checks += ["tests/failures/test_contract.py", "-k", f"{FAULT} and not far and not fails and not cure"]
    unfinished = in_copy(tmp_path, *checks).stdout
    assert "delete them" in unfinished and re.search(r"^1 failed, \d+ passed", unfinished, re.MULTILINE), unfinished

    change(mode, "step_off_by_one", "step_with_the_next_class", 2)
    change(mode, "TRAINED = 0.5", "TRAINED = 0.4", 1)
    change(mode, "Labels off by one", "Classes counted from one", 1)
    change(controls, "left=0.49) and not seen(left=0.51)", "left=0.39) and not seen(left=0.41)", 1)
    for path in (mode, controls):
        path.write_text(re.sub(r"^ *# NEW:.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    finished = in_copy(tmp_path, *checks)
    assert finished.returncode == 0, finished.stdout
    held = in_copy(tmp_path, "-m", "labkit", "clinic", "--contract", "--modes", FAULT, "--seeds", "1", "--json")
    assert held.returncode == 0, held.stdout + held.stderr
    [outcome] = json.loads(held.stdout)
    assert outcome["verdict"][0] == FAULT and outcome["cured"] and outcome["clean"]


def change(path: Path, old: str, new: str, times: int) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == times
    path.write_text(text.replace(old, new), encoding="utf-8")


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path) -> Path:
    """The folders of a clone, with one mode and the tests of something else."""
    for folder in ("labkit/failures/code", "tests/failures", "tests/training"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "labkit/failures/code/half_written.py").touch()
    (tmp_path / "tests/training/test_parts.py").touch()
    return tmp_path


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("forgotten", r"expected TOPIC/FAULT.*got 'forgotten'; for example learning_rate/"),
        ("code/Forgotten", r"expected TOPIC/FAULT.*got 'code/Forgotten'"),
        ("code/for gotten", "expected TOPIC/FAULT"),
        ("code/lambda", "expected TOPIC/FAULT"),
        ("code/", "expected TOPIC/FAULT"),
        ("code/a/b", "expected TOPIC/FAULT"),
        ("../code/forgotten", "expected TOPIC/FAULT"),
        ("code/forgotten\n", "expected TOPIC/FAULT"),
        ("coda/forgotten", r"no topic 'coda'\. Did you mean 'code'\? A new topic first gets its place in PRECEDENCE"),
        ("xyzzy/forgotten", r"no topic 'xyzzy'\. Known: activations, code"),
        ("code/dead_relu", r"there is a failure mode 'dead_relu' already, in activations"),
        ("code/half_written", r"labkit/failures/code/half_written\.py is there already"),
        ("code/parts", r"tests/training/test_parts\.py is there already"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(wish, message, clone):
    before = everything(clone)
    with pytest.raises(RecipeError, match=message):
        new.write(wish, clone)
    assert everything(clone) == before


def test_without_a_clone_there_is_nowhere_to_write(tmp_path):
    with pytest.raises(RecipeError, match=r"written into a clone, and this labkit is installed in .* pip install -e"):
        new.write("code/forgotten", tmp_path)
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("topic", "survivors"), [("code", 0), ("code", 1), ("optimizers", 0), ("optimizers", 1), ("optimizers", 2)]
)
def test_both_files_are_written_or_neither(topic, survivors, clone, monkeypatch):
    monkeypatch.setattr(new, "PRECEDENCE", (*PRECEDENCE, "optimizers"))
    before, whole = everything(clone), new.written_whole
    opened = []

    def full_disk(path):
        opened.append(path)
        if len(opened) > survivors:
            raise OSError("no space left")
        return whole(path)

    monkeypatch.setattr(new, "written_whole", full_disk)
    with pytest.raises(OSError, match="no space left"):
        new.write(f"{topic}/forgotten", clone)
    assert everything(clone) == before


def test_a_topic_that_is_new_in_the_order_of_causes_gets_its_folder(clone, monkeypatch):
    monkeypatch.setattr(new, "PRECEDENCE", (*PRECEDENCE, "optimizers"))
    written = new.write("optimizers/forgotten", clone)
    assert [str(path.relative_to(clone)) for path in written] == [
        "labkit/failures/optimizers/forgotten.py",
        "tests/failures/test_forgotten.py",
        "labkit/failures/optimizers/__init__.py",
    ]
    assert all(path.read_text(encoding="utf-8").startswith('"""') for path in written)
