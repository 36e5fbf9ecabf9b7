"""Harder conditions for healthy programs: noise, few or unequal samples, and loops that tell `watch` less.

A noisy task is not a sick run: what is left of its loss is noise, and no cure would lower it. A condition changes
training and validation data alike, so the program is as healthy as it was.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.operators import (
    DoesNotApply,
    before_update,
    has_float_inputs,
    logits_of,
    need,
    scaled,
)
from labkit.diagnosis.evaluation.foreign.registry import PROGRAMS
from labkit.diagnosis.evaluation.foreign.setup import PER_STEP, Setup, generator, most_frequent

Watch = Callable[..., Any]
# The score from which a run under such conditions has learned: noise leaves little of what could be reached.
ENOUGH = 0.1


@dataclass(frozen=True)
class Condition:
    """What it does to a setup before the loop starts, or to the `watch` that the loop calls."""

    name: str
    change: Callable[[Setup], None] = lambda _: None
    watching: Callable[[Watch], Watch] = lambda watch: watch


def condition(change: Callable[[Setup], None]) -> Condition:
    """Make a Condition of the function that changes a setup; it has the function's name."""
    return Condition(change.__name__, change)


def watching(change: Callable[[Watch], Watch]) -> Condition:
    """Make a Condition of the function that changes `watch`."""
    return Condition(change.__name__, watching=change)


# --- noise --------------------------------------------------------------------------------------------


def some_targets_wrong(s: Setup, share: float) -> None:
    """This share of the targets, in training and in validation, belongs to other samples of the same set."""
    need(s.kind not in ("matching", "reconstruction"))
    chance = generator(s.seed)
    for data in (s.train, s.val):
        targets = data[-1]
        wrong = torch.nonzero(torch.rand(len(targets), generator=chance) < share).flatten()
        data[-1] = targets.clone()
        data[-1][wrong] = targets[wrong[torch.randperm(len(wrong), generator=chance)]]


@condition
def one_target_of_seven_wrong(s: Setup) -> None:
    some_targets_wrong(s, 0.15)


@condition
def a_third_of_the_targets_wrong(s: Setup) -> None:
    some_targets_wrong(s, 0.33)


def targets_blurred(s: Setup, noise: float) -> None:
    """Add noise to targets that are numbers: of their variance, noise / (1 + noise) cannot be explained."""
    need(s.kind == "regression")
    chance = generator(s.seed)
    for data in (s.train, s.val):
        targets = data[-1]
        data[-1] = targets + noise**0.5 * targets.std() * torch.randn(targets.shape, generator=chance)


@condition
def half_of_the_variance_is_noise(s: Setup) -> None:
    targets_blurred(s, 1.0)


@condition
def most_of_the_variance_is_noise(s: Setup) -> None:
    targets_blurred(s, 3.0)


@condition
def inputs_blurred(s: Setup) -> None:
    """Noise as large as the inputs themselves: the features say less."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    chance = generator(s.seed)
    for data in (s.train, s.val):
        scaled(data, lambda x: x + x.std() * torch.randn(x.shape, generator=chance))


# --- samples and classes ------------------------------------------------------------------------------


@condition
def a_quarter_of_the_samples(s: Setup) -> None:
    """A quarter of the training samples, in as many steps as before: each of them comes four times as often."""
    count = max(4 * s.batch_size, len(s.train[-1]) // 4)
    s.train = [each[:count] for each in s.train]


@condition
def unequal_classes(s: Setup) -> None:
    """Of every second class only each eighth sample is left, in training and in validation."""
    need(s.kind in ("classes", "binary") and s.train[-1].ndim == 1)
    for data in (s.train, s.val):
        targets = data[-1].long()
        kept = (targets % 2 == 0) | (torch.arange(len(targets)) % 8 == 0)
        data[:] = [each[kept] for each in data]
    s.floor = max(s.floor, most_frequent(s.val[-1])) if s.metric == "accuracy" else s.floor


# --- other habits -------------------------------------------------------------------------------------


@condition
def labels_smoothed(s: Setup) -> None:
    """Cross-entropy with label smoothing: the loss of perfect outputs is not 0."""
    need(s.kind == "classes" and s.train[-1].ndim == 1)
    s.loss = lambda outputs, targets: F.cross_entropy(logits_of(outputs), targets, label_smoothing=0.2)


@condition
def gradients_clipped(s: Setup) -> None:
    """Clipped to a norm of 1, as many recipes do."""
    weights = [each for each in s.model.parameters() if each.requires_grad]
    before_update(s, lambda: nn.utils.clip_grad_norm_(weights, 1.0))


@condition
def warm_restarts(s: Setup) -> None:
    """A cosine schedule that starts again, in the place of the program's own."""
    need(s.settings.schedule not in PER_STEP)
    first = max(2, s.epochs // 3)
    s.scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        s.optimizers[0], first, eta_min=s.settings.lr / 20
    )


# --- loops that tell less -----------------------------------------------------------------------------


@watching
def without_a_probe(watch: Watch) -> Watch:
    """Two lines and no more: `watch(model, optimizer)`."""
    return lambda model, optimizer, **_: watch(model, optimizer)


@watching
def every_fifth_step(watch: Watch) -> Watch:
    return lambda model, optimizer, **options: watch(model, optimizer, **options | {"every": 5})


@watching
def losses_as_numbers(watch: Watch) -> Watch:
    """The loop records `loss.item()`, and no batch."""

    def told_less(model: Any, optimizer: Any, **options: Any) -> Any:
        record = watch(model, optimizer, **options)
        step = record.step
        record.step = lambda loss, batch=None: step(loss.item() if isinstance(loss, Tensor) else loss)
        return record

    return told_less


CONDITIONS = {each.name: each for each in list(globals().values()) if isinstance(each, Condition)}
HABITS = (
    "labels_smoothed", "gradients_clipped", "warm_restarts", "without_a_probe", "every_fifth_step", "losses_as_numbers",
)  # fmt: skip
NOISE = tuple(name for name in CONDITIONS if name not in HABITS)


def watching_under(names: tuple[str, ...], watch: Watch) -> Watch:
    """The `watch` of a loop that tells less, where one of these conditions says so."""
    for name in names:
        watch = CONDITIONS[name].watching(watch)
    return watch


def change(names: tuple[str, ...], setup: Setup) -> None:
    for name in names:
        CONDITIONS[name].change(setup)


def applies(name: str, program: str) -> bool:
    """Has the program the pieces that a condition changes?"""
    with torch.random.fork_rng(devices=[]):
        try:
            CONDITIONS[name].change(PROGRAMS[program].prepared(0))
        except DoesNotApply:
            return False
    return True


def draw(programs: Sequence[str], count: int) -> list[tuple[str, int, tuple[str, ...]]]:
    """(program, seed, conditions) for `count` healthy runs, program after program, always the same ones.

    One condition of the data, and in every second run a habit of the loop with it.
    """
    found = []
    for turn in range(count):
        name = programs[turn % len(programs)]
        chance = random.Random(f"harder {name} {turn // len(programs)}")
        chosen = [chance.choice([each for each in NOISE if applies(each, name)])]
        if chance.random() < 0.5:
            chosen.append(chance.choice([each for each in HABITS if applies(each, name)]))
        found.append((name, chance.randrange(1000, 10_000), tuple(chosen)))
    return found
