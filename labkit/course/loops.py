"""Exercises in which a student edits a plain PyTorch loop: it trains on data and a seed it has not seen, watched."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from labkit.course.grading import HIDDEN_SEED, Exercise, NotYet, Student, expect
from labkit.diagnosis.diagnose import UNSURE, Diagnosis, diagnose
from labkit.diagnosis.watch import Watch, watch
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.recording.undisturbed import evaluating
from labkit.training.data import Split, load

KNOWN = 10_000  # images from the start that lessons train on: judges take others, of CIFAR-10 the second half
PROBE = 256  # held-out images that the watch measures again at every validation
VALIDATIONS = 4  # in each pass through the loader
# Without numbers: they differ from machine to machine, and a lesson's stored reply is compared with this one.
SAME_AS_REFERENCE = "On other images and with another seed it learns as well as a correct loop, and no failure shows."
MARGIN = 0.03  # of accuracy, below the reference: two seeds of a small net on 2,000 digits differ by 0.01


class Batches(DataLoader):
    """A DataLoader that remembers the batch it gave last, so that the watch can be told which samples passed."""

    latest: Any = None

    def __iter__(self) -> Iterator:
        for batch in super().__iter__():
            self.latest = batch
            yield batch


@dataclass(frozen=True)
class Setting:
    """What a student's loop is called with: the net, perhaps its optimizer, the training loader, and more."""

    arguments: tuple
    held_out: Split
    loss: Callable[[Any, Tensor], Tensor] = cross_entropy

    @property
    def model(self) -> nn.Module:
        return next(each for each in self.arguments if isinstance(each, nn.Module))

    @property
    def optimizer(self) -> Optimizer | None:
        """None where the loop makes its own."""
        return next((each for each in self.arguments if isinstance(each, Optimizer)), None)

    @property
    def loader(self) -> DataLoader:
        return next(each for each in self.arguments if isinstance(each, DataLoader))

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Loss and accuracy on held-out images in eval mode; every module is in its own mode again afterwards."""
        with evaluating(self.model):
            outputs = self.model(self.held_out.x)
        right = (outputs.argmax(1) == self.held_out.y).float().mean()
        return {"loss": self.loss(outputs, self.held_out.y).item(), "accuracy": right.item()}


def images(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[Any], Optimizer] | None = None,
    *more: Any,
    dataset: str = "mnist",
    samples: int = 2_000,
    batch_size: int = 64,
) -> Callable[[int], Setting]:
    """The usual setting: f(model, optimizer, loader, *more), or f(model, loader, *more) without `make_optimizer`."""

    def setting(seed: int) -> Setting:
        known = load(dataset, "train", samples=2 * KNOWN)
        size = min(known.size, 2 * KNOWN)  # more may have been loaded before: the same images in every session
        first = min(KNOWN, size // 2)
        chosen = first + torch.randperm(size - first, generator=torch.Generator().manual_seed(seed))[:samples]
        torch.manual_seed(seed)  # for the weights, and for what the loop draws itself
        model = make_model()
        order = torch.Generator().manual_seed(seed)
        data = TensorDataset(known.x[chosen], known.y[chosen])
        loader = Batches(data, batch_size=batch_size, shuffle=True, generator=order)
        optimizers = [make_optimizer(model.parameters())] if make_optimizer else []
        return Setting((model, *optimizers, loader, *more), load(dataset, "val"))

    return setting


@dataclass(frozen=True)
class Outcome:
    """What a loop did: its run, the accuracy at the end, and what it returned."""

    setting: Setting
    run: Run
    accuracy: float
    returned: Any

    @functools.cached_property
    def diagnoses(self) -> list[Diagnosis]:
        return diagnose(self.run)


class Follower:
    """Watches a loop that does not know of it.

    The loss is the tensor of the latest `.backward()`; the optimizer is the given one or the first that the loop makes.
    """

    def __init__(self, setting: Setting):
        self.setting = setting
        self.steps, self.steps_without_loss = 0, 0
        self.every = max(1, len(setting.loader) // VALIDATIONS)
        self.undo = contextlib.ExitStack()
        self.record: Watch | None = None
        self.loss: Tensor | None = None

    def __enter__(self) -> Self:
        backward, made = Tensor.backward, Optimizer.__init__

        def noting_backward(tensor: Tensor, *arguments: Any, **options: Any) -> None:
            self.loss = tensor.detach()
            backward(tensor, *arguments, **options)

        def noting_made(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
            made(optimizer, *arguments, **options)
            self.meet(optimizer)

        Tensor.backward, Optimizer.__init__ = noting_backward, noting_made
        self.undo.callback(setattr, Tensor, "backward", backward)
        self.undo.callback(setattr, Optimizer, "__init__", made)
        self.undo.callback(register_optimizer_step_post_hook(self.stepped).remove)
        if self.setting.optimizer is not None:
            self.meet(self.setting.optimizer)
        return self

    def __exit__(self, *_: object) -> None:
        self.undo.close()

    def meet(self, optimizer: Optimizer) -> None:
        """Begin to watch, once there is an optimizer of this net."""
        own = {id(each) for each in self.setting.model.parameters()}
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if self.record is None and own & held:
            x, y = self.setting.held_out
            self.record = watch(self.setting.model, optimizer, probe=(x[:PROBE], y[:PROBE]), loss_fn=self.setting.loss)
            self.undo.enter_context(self.record)
            self.record.validation(**self.setting.validate())

    def stepped(self, optimizer: Optimizer, *_: object) -> None:
        if self.record is None or optimizer not in self.record.optimizers:
            return
        if self.loss is None:
            self.steps_without_loss += 1
            return
        self.record.step(self.loss, batch=getattr(self.setting.loader, "latest", None))
        self.steps += 1
        if self.steps % self.every == 0:
            self.record.validation(**self.setting.validate())


def follow(function: Callable, setting: Setting) -> Outcome:
    """Run a loop under the watch. Raises NotYet where it trains nothing."""
    with Follower(setting) as follower:
        returned = function(*setting.arguments)
        expect(follower.record, "Your loop made no optimizer with the weights of the net that it was given.")
        expect(
            not follower.steps_without_loss,
            "The optimizer stepped before any `.backward()`: where do its gradients come from?",
        )
        expect(follower.steps, "The optimizer never stepped: the weights are as they were.")
        result = setting.validate()
        if follower.steps % follower.every:
            follower.record.validation(**result)
    return Outcome(setting, follower.record.run, result["accuracy"], returned)


def _counts(name: str, free_of: tuple[str, ...] | None, usual: set[str]) -> bool:
    """Whether a failure that was named speaks against a loop."""
    return name in free_of if free_of is not None else name not in {UNSURE, *usual}


def loop(
    id: str,
    title: str,
    setting: Callable[[int], Setting],
    reference: Callable,
    *,
    example: str = "train(model, optimizer, loader)",
    free_of: tuple[str, ...] | None = None,
    also: Callable[[Outcome], str | None] | None = None,
    margin: float = MARGIN,
    seeds: tuple[int, ...] = (HIDDEN_SEED,),
    **fields,
) -> Exercise:
    """A training function, called with `setting(seed).arguments`, has to learn as well as `reference`, a correct one.

    The diagnosis of its run must name none of `free_of`; by default, nothing that it does not name in the run of the
    reference, as such short runs raise some false alarms. `also(outcome)` may test more, and raises `NotYet`.
    """
    for name in free_of or ():
        FAILURES[name]

    @functools.cache
    def of_reference(seed: int) -> tuple[float, set[str]]:
        outcome = follow(reference, setting(seed))
        return outcome.accuracy, {each.name for each in outcome.diagnoses}

    def judge(mine) -> str:
        student = Student(mine, example)
        for seed in seeds:
            outcome = follow(student.call_or_none, setting(seed))
            wanted, usual = of_reference(seed)
            tried = f"Run on other images with another seed, {len(outcome.run)} steps: {outcome.accuracy:.1%} correct"
            shown = [each for each in outcome.diagnoses if _counts(each.name, free_of, usual)]
            if shown:
                raise NotYet(f"{tried}.\nThe run shows {shown[0].title.lower()}: {shown[0].because}.")
            expect(outcome.accuracy >= wanted - margin, f"{tried}; a correct loop reaches {wanted:.1%}.")
            comment = also(outcome) if also else None
        return comment or SAME_AS_REFERENCE

    return Exercise(id=id, title=title, kind="loop", judge=judge, modes=fields.pop("modes", free_of or ()), **fields)
