"""No step makes a GPU wait: the recorder on torch's meta device, which has no numbers that anybody could ask for.

`.item()`, `bool(tensor)` and copies to the CPU raise there, and are counted besides.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.diagnosis.watch import watch
from labkit.recording.recorder import CHECK_EVERY, Recorder

META = torch.device("meta")


class Waits(TorchDispatchMode):
    """Counts the operations that make the CPU wait for a device."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        to_cpu = name == "_to_copy" and str(kwargs.get("device")) == "cpu"
        waits = name in ("_local_scalar_dense", "nonzero", "masked_select") or to_cpu
        if waits and args[0].device == META:  # a number on the CPU is there already
            self.found.append(name)
            raise RuntimeError(f"{name} makes a GPU wait")
        return function(*args, **kwargs)


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


@pytest.mark.parametrize("ask", [lambda loss: loss.item(), lambda loss: bool(loss > 0), lambda loss: loss.cpu()])
def test_asking_for_a_number_is_noticed(ask):
    model, optimizer = net()
    with pytest.raises((RuntimeError, NotImplementedError)):
        loop(Recorder(model, optimizer), model, optimizer, 1, lambda record, loss, *_: ask(loss))
