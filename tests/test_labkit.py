"""The names that others rely on, and that they cost nothing until they are used."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import labkit

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_names_that_others_rely_on():
    for name in (
        "Recipe",
        "Run",
        "train",
        "FAILURES",
        "FailureMode",
        "diagnose",
        "Diagnosis",
        "study",
        "Study",
        "is_cured",
    ):
        assert getattr(labkit, name) is not None
        assert name in dir(labkit)


@pytest.mark.parametrize("name", ["train", "diagnose", "study"])
def test_a_function_is_not_hidden_by_the_module_of_its_name(name):
    module = importlib.import_module(f"labkit.{name}")
    assert getattr(labkit, name) is getattr(module, name)
    assert callable(getattr(labkit, name))


def test_an_unknown_name_is_told_which_there_are():
    with pytest.raises(AttributeError, match=r"labkit has no 'trian'; it has .*study, train"):
        labkit.trian  # noqa: B018


def test_importing_labkit_loads_neither_torch_nor_numpy():
    code = "import sys, labkit; print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
