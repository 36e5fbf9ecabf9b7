"""torchvision imports where its operators load and where they do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT

from labkit.training import torchvision_shim

BROKEN = """
import torch
import torchvision.part
if not hasattr(torch.ops.torchvision, "nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
"""
IMPORT = "from labkit.training import torchvision_shim as shim; shim.torchvision()\n"


def run(code: str, *first: Path) -> subprocess.CompletedProcess:
    """Python in a process of its own, because torch's operators are declared once per process."""
    path = os.pathsep.join(str(folder) for folder in (*first, ROOT))
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})


def pretend_torchvision(folder: Path, code: str) -> Path:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    (package / "part.py").write_text("print('part imported')")
    return folder


def test_the_shim_declares_the_missing_operators_and_imports_afresh(tmp_path):
    code = (
        "import gc, torch; from labkit.training import torchvision_shim as shim; "
        "module = shim.torchvision(); gc.collect(); "
        "print(module.__name__, shim.uses_shim(), hasattr(torch.ops.torchvision, 'qnms'))"
    )
    done = run(code, pretend_torchvision(tmp_path, BROKEN))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["part imported", "part imported", "torchvision True True"]


def test_a_healthy_torchvision_is_left_alone(tmp_path):
    code = (
        "import torch; from labkit.training import torchvision_shim as shim; "
        "print(shim.uses_shim(), hasattr(torch.ops.torchvision, 'nms'))"
    )
    done = run(code, pretend_torchvision(tmp_path, "import torchvision.part"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["part imported", "False False"]


@pytest.mark.parametrize("problem", ["RuntimeError('out of memory')", "ImportError('torchvision::nms')"])
def test_other_errors_pass_through(tmp_path, problem):
    done = run(IMPORT, pretend_torchvision(tmp_path, f"import torchvision.part\nraise {problem}"))
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["part imported"]  # no second try
    assert done.stderr.strip().endswith(problem.replace("('", ": ").replace("')", ""))


def test_the_real_torchvision_works_and_is_imported_once():
    module = torchvision_shim.torchvision()
    from torchvision.transforms import v2

    assert torchvision_shim.torchvision() is module is sys.modules["torchvision"]
    image = torch.arange(6.0).view(1, 2, 3)
    assert torch.equal(v2.RandomHorizontalFlip(p=1)(image), image.flip(-1))


def test_the_shim_is_used_exactly_where_the_plain_import_fails():
    plain = run("import torchvision")
    assert torchvision_shim.uses_shim() == ("torchvision::nms" in plain.stderr)


def test_data_imports_neither_torchvision_nor_pillow():
    code = "import sys, labkit.training.data; print([n for n in ('torchvision', 'PIL') if n in sys.modules])"
    done = run(code)
    assert done.stdout.strip() == "[]", done.stderr
