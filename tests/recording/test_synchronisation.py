"""No step makes a GPU wait: the recorder and the loop on torch's meta device, whose tensors have no numbers.

What would make a GPU wait (`.item()`, `bool(tensor)`, a copy to the CPU, a mask as an index) is counted there: in
training steps, and in validations, where the tests of language models ask one question. The first validation (the loss
of the best constant prediction) and the tests at the end of a run may wait.
"""

import pytest
import torch
from helpers import tiny
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.diagnosis.watch import watch
from labkit.recording import recorder as recording
from labkit.recording.recorder import CHECK_EVERY, FIRST_FULL, FULL_EVERY, Recorder
from labkit.training.language import LanguageRecipe
from labkit.training.loop import Training

META = torch.device("meta")
STEPS = FIRST_FULL + FULL_EVERY + 4  # some are measured in full, and some are not


@pytest.fixture
def no_check(monkeypatch):
    """The check for NaN, which may wait, comes after all these steps."""
    monkeypatch.setattr(recording, "CHECK_EVERY", 2 * STEPS)


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
            "_local_scalar_dense": lambda: True if args[0].dtype == torch.bool else 0.0,  # tokens are valid
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
        found = waits.found.copy()  # the end of a run may wait
    return found


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


def test_no_step_of_the_recorder_waits_before_the_next_check(no_check):
    model, optimizer = net()

    def tell(recorder, loss, x, y, optimizer):
        recorder.look(loss, x, y)
        optimizer.step()

    assert loop(Recorder(model, optimizer), model, optimizer, STEPS, tell) == []


def test_no_step_of_a_watched_loop_waits_before_the_next_check(no_check):
    model, optimizer = net()

    def tell(record, loss, x, y, optimizer):
        optimizer.step()
        record.step(loss, batch=(x, y))

    record = watch(model, optimizer, strict=True)
    assert loop(record, model, optimizer, STEPS, tell) == [] and record.steps == STEPS


def on_meta(recipe) -> tuple[Training, torch.Tensor, torch.Tensor]:
    """A training of this recipe on the meta device, with a recorder and its probe there, and a batch."""
    training = Training(recipe)
    training.device, training.model = META, training.model.to(META)
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=recipe.lr)  # fused ones know no meta device
    training.recorder = training.new_recorder(instruments=True)
    probe = training.recorder.probe
    probe.x, probe.y = probe.x.to(META), probe.y.to(META)
    x, y = (part[: recipe.batch_size].to(META) for part in training.data.train)
    return training, x, y


def language(**changes) -> LanguageRecipe:
    return LanguageRecipe(samples=64, depth=1, width=16, batch_size=8, **changes)


@pytest.mark.parametrize(
    "recipe",
    [
        tiny(clip=1.0),
        tiny(clip=1.0, clip_by="value"),
        tiny(schedule="warmup_cosine", warmup=4, loss_scale=128.0),
        tiny(model="vit", depth=1),
        language(),
        language(qk_norm=True, tied=True, clip=1.0),
    ],
    ids=["clipped", "clipped by value", "scheduled", "vit", "language", "language, tied"],
)
def test_no_step_of_labkits_own_loop_waits_before_the_next_check(recipe, no_check):
    training, x, y = on_meta(recipe)
    with Waits() as waits:
        training.recorder.__enter__()
        for step in range(STEPS):
            training.set_lr(recipe.schedule(step, recipe))
            recipe.step(training, x, y)
    assert waits.found == [] and training.recorder.steps == STEPS


def test_no_step_of_a_watched_language_model_waits_before_the_next_check(no_check):
    training, x, y = on_meta(language())
    model, optimizer = training.model, training.optimizer
    with Waits() as waits, watch(model, optimizer, strict=True) as record:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
        assert waits.found == [] and record.steps == STEPS
        record.probe = record.first_batch = None  # the tests at the end of a run may wait


@pytest.mark.parametrize(("recipe", "questions"), [(tiny(), []), (language(), ["_local_scalar_dense"])])
def test_a_validation_asks_at_most_whether_its_inputs_are_tokens(recipe, questions):
    training, x, y = on_meta(recipe)
    recorder, found = training.recorder, []
    recorder.probe.constant_loss = 1.0  # the first validation has found it
    with Waits() as waits:
        recipe.step(training, x, y)
        recorder.validate(loss=torch.zeros((), device=META))
        found = waits.found.copy()
    assert found == questions
    [row] = recorder.evaluations
    assert ("leak_changed" in row) == ("cache_difference" in row) == bool(questions)  # the token tests were made


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
