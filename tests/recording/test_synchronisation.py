"""No step makes a GPU wait: the recorder and the loop on torch's meta device, whose tensors have no numbers.

What would make a GPU wait (`.item()`, `bool(tensor)`, a copy to the CPU, a mask as an index) is counted there.
"""

import pytest
import torch
from helpers import tiny
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.diagnosis.watch import watch
from labkit.recording.recorder import CHECK_EVERY, Recorder
from labkit.training.loop import Training

META = torch.device("meta")


class Waits(TorchDispatchMode):
    """Counts the operations that make the CPU wait for a device, and answers them with zeros or with nothing."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        tensors = [each for each in args if torch.is_tensor(each)]
        if not any(each.device == META for each in tensors):  # a number on the CPU is there already
            return function(*args, **kwargs)
        stand_ins = {
            "_local_scalar_dense": lambda: 0.0,
            "nonzero": lambda: torch.zeros(0, args[0].ndim, dtype=torch.long, device=META),
            "masked_select": lambda: args[0].new_zeros(0),
        }
        if name == "_to_copy" and str(kwargs.get("device")) == "cpu":
            stand_ins[name] = lambda: torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "copy_" and args[0].device != META:
            stand_ins[name] = lambda: args[0]
        if name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1]):
            stand_ins[name] = lambda: args[0].new_zeros(0)
        if name not in stand_ins:
            return function(*args, **kwargs)
        self.found.append(name)
        return stand_ins[name]()


def loop(record, model, optimizer, steps: int, tell) -> list[str]:
    with Waits() as waits, record:
        for _ in range(steps):
            x, y = torch.empty(16, 1, 6, 6, device=META), torch.empty(16, dtype=torch.long, device=META)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            tell(record, loss, x, y, optimizer)
    return waits.found


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    layers = (
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )
    model = nn.Sequential(*layers).to(META)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_no_step_of_the_recorder_waits_before_the_next_check():
    model, optimizer = net()

    def tell(recorder, loss, x, y, optimizer):
        recorder.look(loss, x, y)
        optimizer.step()

    assert loop(Recorder(model, optimizer), model, optimizer, CHECK_EVERY - 1, tell) == []


def test_no_step_of_a_watched_loop_waits_before_the_next_check():
    model, optimizer = net()

    def tell(record, loss, x, y, optimizer):
        optimizer.step()
        record.step(loss, batch=(x, y))

    assert loop(watch(model, optimizer), model, optimizer, CHECK_EVERY - 1, tell) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"clip": 1.0},
        {"clip": 1.0, "clip_by": "value"},
        {"schedule": "warmup_cosine", "warmup": 4, "loss_scale": 128.0},
    ],
)
def test_no_step_of_labkits_own_loop_waits_before_the_next_check(changes):
    training = Training(tiny(steps=CHECK_EVERY, **changes))
    recipe, training.device, training.model = training.recipe, META, training.model.to(META)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=recipe.lr)  # fused ones know no meta device
    x, y = (part[: recipe.batch_size].to(META) for part in training.data.train)
    training.recorder = training.new_recorder(instruments=True)
    training.recorder.probe = None  # the tests at the end of a run may wait
    with Waits() as waits, training.recorder:
        for step in range(CHECK_EVERY - 1):
            training.set_lr(recipe.schedule(step, recipe))
            recipe.step(training, x, y)
    assert waits.found == []


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda loss: loss.item(), "_local_scalar_dense"),
        (lambda loss: bool(loss > 0), "_local_scalar_dense"),
        (lambda loss: loss.cpu(), "_to_copy"),
        (lambda loss: torch.zeros(()).copy_(loss.detach()), "copy_"),
        (lambda loss: loss.expand(3)[loss.expand(3) > 0], "index"),
        (lambda loss: loss.expand(3).nonzero(), "nonzero"),
    ],
)
def test_asking_for_a_number_is_noticed(ask, name):
    model, optimizer = net()
    asked = loop(Recorder(model, optimizer), model, optimizer, 1, lambda record, loss, *_: ask(loss))
    assert asked == [name]


def test_the_check_itself_is_noticed():
    model, optimizer = net()

    def tell(recorder, loss, x, y, optimizer):
        recorder.look(loss, x, y)
        optimizer.step()

    assert loop(Recorder(model, optimizer), model, optimizer, CHECK_EVERY, tell) != []
