"""The names that others rely on, and that they cost nothing until they are used."""

import ast
import os
import pkgutil
import subprocess
import sys
import textwrap

import pytest
from helpers import ROOT

import labkit


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


def test_every_public_name_resolves_in_a_fresh_process():
    code = """
        import labkit
        for name in labkit.__all__:
            value = getattr(labkit, name)
            if name not in labkit._MODULES and name != "__version__":
                assert getattr(value, "__name__", name) == name, f"{name} is {value!r}"
        print(len(labkit.__all__))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout.strip(), done.stderr) == (str(len(labkit.__all__)), "")


def test_editors_are_told_the_same_names():
    stub = ast.parse((ROOT / "labkit/__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        each.asname or each.name: node.module if node.module.count(".") > 1 else f"{node.module}.{each.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert imported == {name: f"labkit.{home}" for name, home in (labkit._HOME | labkit._MODULES).items()}
    [names] = [node.value for node in stub.body if isinstance(node, ast.Assign)]
    assert sorted(ast.literal_eval(names)) == sorted(labkit.__all__)


def test_no_public_name_is_hidden_by_a_module():
    inside = {module.name for module in pkgutil.iter_modules(labkit.__path__)}
    assert not inside & set(labkit.__all__)


def test_an_unknown_name_is_told_which_there_are():
    with pytest.raises(AttributeError, match=r"labkit has no 'trian'; it has .*study, train"):
        labkit.trian  # noqa: B018


def test_importing_labkit_loads_neither_torch_nor_numpy():
    code = "import sys, labkit; print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
