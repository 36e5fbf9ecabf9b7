"""A net that is too large for this machine is refused in words. Nothing here allocates what it asks for."""

import pytest
import torch
from helpers import tiny

import labkit
from labkit.cli.main import main
from labkit.errors import RecipeError
from labkit.training import memory
from labkit.training.loop import Training, train
from labkit.training.recipe import Recipe

TOO_LARGE = 10**15  # width: 3 exabytes of weights, beyond the addresses of any machine


@pytest.mark.parametrize("model", ["mlp", "rnn", "vit", "convnet"])
def test_weights_that_no_machine_can_hold_are_refused(model):
    with pytest.raises(RecipeError, match=f"width {TOO_LARGE}, depth 3.*choose a smaller width, depth or batch_size"):
        train(Recipe(model=model, width=TOO_LARGE, depth=3, heads=1))


def test_the_command_line_says_it_in_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    assert main(["run", "dead_relu", "--set", f"width={TOO_LARGE}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"labkit: width {TOO_LARGE}, depth 3") and said.count("\n") == 1


def test_weights_that_would_not_leave_room_to_train_are_refused_before_they_are_drawn(monkeypatch):
    drawn = []
    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", lambda *_, **__: drawn.append("weights"))
    monkeypatch.setattr(memory, "machine_memory", lambda: 10**6)
    with pytest.raises(RecipeError, match=r"width 1000, depth 2: .* 0.0125 GB.*has 0.001 GB.*smaller width or"):
        Training(tiny(width=1000))
    assert drawn == []


def test_a_net_that_fits_is_trained(monkeypatch):
    weights = sum(each.nbytes for each in Training(tiny()).model.parameters())
    monkeypatch.setattr(memory, "machine_memory", lambda: memory.COPIES * weights)
    Training(tiny())
    Training(tiny())  # each net is counted alone
    monkeypatch.setattr(memory, "machine_memory", lambda: memory.COPIES * weights - 1)
    with pytest.raises(RecipeError):
        Training(tiny())
    torch.nn.Linear(1000, 1000)  # outside of a training nothing is counted
    monkeypatch.setattr(memory, "machine_memory", lambda: None)  # a system that does not tell
    Training(tiny())


NO_MEMORY = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
)


@pytest.mark.parametrize("error", NO_MEMORY, ids=lambda error: type(error).__name__)
def test_an_allocation_that_fails_in_a_step_names_the_knobs(error):
    def failing(training, x, y):
        raise error

    recipe = tiny(step=failing)
    for start in (train, lambda recipe: labkit.fork(recipe, at=1)):
        with pytest.raises(RecipeError, match="batch_size 32: there is not enough memory") as raised:
            start(recipe)
        assert raised.value.__cause__ is error
    assert train(recipe, errors="record").facts["error"]["kind"] == type(error).__name__


def test_another_error_stays_as_it_is():
    def failing(training, x, y):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(tiny(step=failing))


def test_depth_has_an_end():
    assert Recipe(depth=10_000)
    with pytest.raises(RecipeError, match="depth: expected a whole number at least 1 and at most 10000, got 1000000"):
        Recipe(depth=10**6)
