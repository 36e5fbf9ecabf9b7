"""The standalone script of every failure mode: it needs torch alone, and it runs."""

import ast
import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.course.standalone.gather import script
from labkit.failures.catalogue import FAILURES
from labkit.training.data import embedded_folder

ALONE = {"learning_rate_too_high", "fp16_overflow", "dead_relu"}  # in a fresh Python, which takes its time


@pytest.fixture(scope="module")
def fewer_images(tmp_path_factory) -> Path:
    """The first images of MNIST, in files as MNIST has them: reading all of it takes longer than two steps."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, count in {"train": 10_000, "t10k": 500}.items():
        for kind, header in {"images-idx3": 16, "labels-idx1": 8}.items():
            name = f"{part}-{kind}-ubyte.gz"
            content = gzip.decompress((embedded_folder() / name).read_bytes())
            each = (len(content) - header) // int.from_bytes(content[4:8], "big")
            content = content[:4] + count.to_bytes(4, "big") + content[8 : header + count * each]
            (folder / name).write_bytes(gzip.compress(content, compresslevel=1))
    return folder


@pytest.mark.parametrize("name", FAILURES)
def test_it_is_complete_and_runs(name, fewer_images, tmp_path, monkeypatch, capsys):
    text = script(FAILURES[name])
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in imported if isinstance(node, ast.ImportFrom)}
    assert not any(module.split(".")[0] == "labkit" for module in modules)
    assert FAILURES[name].title in text and "SICK" in text and "CURED" in text
    if FAILURES[name].sick.processes > 1:
        return run_alone(text, tmp_path, fewer_images)  # its processes must be able to import it
    monkeypatch.setenv("MNIST_FOLDER", str(fewer_images))
    monkeypatch.setattr(sys, "argv", ["script.py", "--steps", "2"])
    exec(compile(text, f"{name}.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "sick" in printed and "cured" in printed
    assert printed.count("validation:") == (1 if FAILURES[name].raises else 2)


@pytest.mark.parametrize("name", sorted(ALONE))
def test_it_runs_in_a_python_that_has_never_heard_of_labkit(name, tmp_path):
    run_alone(script(FAILURES[name]), tmp_path, embedded_folder())


def run_alone(text: str, folder: Path, mnist: Path) -> None:
    (folder / "alone.py").write_text(text, encoding="utf-8")
    hidden = "import sys; sys.modules['labkit'] = None; import runpy; runpy.run_path('alone.py', run_name='__main__')"
    arguments = [sys.executable, "alone.py"] if "spawn(" in text else [sys.executable, "-c", hidden]
    done = subprocess.run(
        [*arguments, "--steps", "2"],
        cwd=folder,
        env={"MNIST_FOLDER": str(mnist), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation:") >= 2


def test_the_sick_settings_are_those_of_the_mode():
    text = script(FAILURES["learning_rate_too_high"])
    assert "lr=10.0," in text and "CURED = SICK.but(lr=0.1)" in text
