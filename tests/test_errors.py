"""Missing extras: what still works, and what the message says."""

import importlib
import os
import subprocess
import sys
import textwrap

import pytest
from helpers import ROOT

from labkit import errors
from labkit.cli.main import main
from labkit.errors import MissingExtra, RecipeError, optional
from labkit.recording import logs

HIDE = """
    import sys

    LAB = ("ipywidgets", "IPython", "jupyterlab", "notebook", "ipykernel", "nbformat", "nbclient")
    sys.modules.update(dict.fromkeys(LAB))  # None: an import of it raises ModuleNotFoundError
"""


def fresh(code: str) -> str:
    """What the code prints in a new process in which the extra `lab` cannot be imported."""
    command = [sys.executable, "-c", textwrap.dedent(HIDE) + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_but_the_panels_works_without_the_extra_lab():
    code = """
        import labkit, torch
        from labkit.cli.main import main

        panels = {name for name, home in labkit._HOME.items() if home.startswith("panels.")}
        assert not panels & set(labkit.__all__)  # so that `from labkit import *` and help(labkit) work
        for name in labkit.__all__:
            getattr(labkit, name)
        from labkit.course.poster import poster
        from labkit.tools import clipping, dead_units, gradient_flow, lr_finder

        model = torch.nn.Linear(4, 3)
        with labkit.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as record:
            pass
        assert main(["list", "--json"]) == 0
        for name in sorted(panels):
            try:
                getattr(labkit, name)
            except ModuleNotFoundError as error:
                assert "'lab'" in str(error) and "ipywidgets" in str(error), error
            else:
                raise AssertionError(f"{name} did not ask for ipywidgets")
        print("PANELS", len(panels))
    """
    assert fresh(code).splitlines()[-1] == "PANELS 10"


def test_a_panel_without_ipywidgets_names_the_extra_and_the_command():
    said = fresh("""
        import labkit
        try:
            labkit.knobs
        except ModuleNotFoundError as error:
            print(error)
    """)
    assert said == f"labkit.knobs needs ipywidgets, which is not installed. Install the extra 'lab': {command('lab')}\n"


def command(extra: str) -> str:
    return f'in {ROOT}: pip install -e ".[{extra}]" -c constraints.txt'


def test_a_wheel_is_not_told_of_a_clone(tmp_path):
    assert errors.install("lab", tmp_path) == 'pip install "failure-mode-labkit[lab]"'
    assert errors.install("lab") == command("lab")


def test_what_is_installed_is_returned():
    import json.decoder

    assert optional("json.decoder", extra="lab", feature="this test") is json.decoder


def test_a_missing_part_of_an_optional_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(MissingExtra, match=r"to_tensorboard needs tensorboard, .*'tracking'") as caught:
        optional("torch.utils.tensorboard", extra="tracking", feature="to_tensorboard")
    assert caught.value.name == "tensorboard"


def test_exporting_without_wandb_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra) as caught:
        logs.to_wandb(None)
    assert str(caught.value).endswith(command("tracking"))


def test_the_command_line_shows_a_missing_extra_as_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    assert main(["clinic", "--contract", "--dask", "tcp://nowhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("labkit: --dask needs dask.distributed, ")
    assert said.endswith(f"{command('cluster')}\n") and said.count("\n") == 1


@pytest.mark.parametrize("adapter", ["lightning.pytorch", "transformers", "skorch.callbacks"])
def test_an_adapter_without_its_library_names_the_extra(adapter, monkeypatch):
    name = {"transformers": "huggingface"}.get(adapter, adapter.split(".")[0])
    monkeypatch.setitem(sys.modules, adapter, None)
    monkeypatch.delitem(sys.modules, f"labkit.adapters.{name}", raising=False)
    with pytest.raises(MissingExtra, match=f"labkit.adapters.{name} needs .*'adapters'"):
        importlib.import_module(f"labkit.adapters.{name}")


def test_a_missing_extra_is_no_recipe_error():
    """It is an ImportError, as callers who try an import expect."""
    assert issubclass(MissingExtra, ImportError) and not issubclass(MissingExtra, RecipeError)
