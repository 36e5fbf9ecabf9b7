"""The public functions say what they take and return, and a type checker can use it."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

import labkit

SPECIAL = ("__init__", "__call__", "__enter__", "__exit__", "__getitem__", "__contains__", "__len__")

GOOD = """
import torch
import labkit
from labkit.training.protocols import StepPart
from labkit.training.state import TrainingState

recipe = labkit.Recipe(lr=0.1, optimizer="adam", steps=3).but(depth=4)
run: labkit.Run = labkit.train(recipe, progress=False)
accuracy: float | None = run.accuracy
names: list[str] = [found.name for found in labkit.diagnose(run)]
rate: float = recipe.schedule(3, recipe)

def my_step(training: TrainingState, x: torch.Tensor, y: torch.Tensor) -> None:
    training.backward(training.loss(x, y))

step: StepPart = my_step
labkit.Recipe(step=my_step)

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters())
with labkit.watch(model, optimizer, on_alarm="print") as record:
    record.step(torch.tensor(1.0))
    watched: labkit.Run = record.run
"""
WRONG = {
    "train of a string": ('labkit.train("x")', 'Argument 1 to "train" has incompatible type "str"'),
    "a knob of the wrong type": ('labkit.Recipe(lr="high")', 'Argument "lr" to "Recipe" has incompatible type "str"'),
    "an unknown entry": ("labkit.Recipe(btach_size=3)", 'Unexpected keyword argument "btach_size" for "Recipe"'),
    "a part that is no function": ("labkit.Recipe(step=3)", 'Argument "step" to "Recipe" has incompatible type "int"'),
    "a part of another kind": (
        "def step(training: int) -> None: ...\nlabkit.Recipe(step=step)",
        'Argument "step" to "Recipe" has incompatible type',
    ),
}


def functions():
    """Every function of the public API, and every public method and property of its classes."""
    for name in labkit._HOME:
        thing = getattr(labkit, name)
        if not inspect.isclass(thing):
            if callable(thing):
                yield pytest.param(thing, id=name)
            continue
        for method, found in vars(thing).items():
            found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            own = inspect.isfunction(found) and found.__module__ == thing.__module__  # not what a dataclass makes
            if own and (method in SPECIAL or not method.startswith("_")):
                yield pytest.param(found, id=f"{name}.{method}")


@pytest.mark.parametrize("function", list(functions()))
def test_a_public_function_has_complete_annotations(function):
    signature = inspect.signature(function)
    bare = [each.name for each in signature.parameters.values() if each.annotation is each.empty]
    assert [name for name in bare if name not in ("self", "cls")] == []
    assert function.__name__ == "__init__" or signature.return_annotation is not signature.empty


def test_the_package_tells_type_checkers_that_it_has_types():
    assert (Path(labkit.__file__).parent / "py.typed").is_file()


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says about a text that uses labkit."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("needs mypy: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("types")

    def check(text: str) -> str:
        (folder / "mine.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
        command += ["--cache-dir", str(folder / "cache"), str(folder / "mine.py")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    return check


def test_good_code_passes_the_type_checker(checked):
    assert "Success" in checked(GOOD)


def test_wrong_calls_are_refused_by_the_type_checker(checked):
    """All in one file: every start of mypy reads torch's types again."""
    said = checked("import labkit\n" + "\n".join(code for code, _ in WRONG.values()))
    missed = [case for case, (_, words) in WRONG.items() if words not in said]
    assert missed == [], said
