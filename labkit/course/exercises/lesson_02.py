"""Exercises of lesson 02, the gallery of loss curves; its experiments, its sealed runs and its corrupt batch."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from labkit.course.grading import Student, build, diagnose, expect, explain, number, short
from labkit.course.loops import Batches, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.loop import train
from labkit.training.recipe import Recipe

SEED = 5  # of sealed runs: not the seed of the gallery, for the shape counts and not this exact curve

# --- 02.1 ---


def falling(first: float, last: float, steps: int = 100) -> np.ndarray:
    return np.geomspace(first, last, steps)


def judge_shape(mine: Student) -> str:
    def expect_shape(train, val, right: str, what: str, otherwise: str = "") -> None:
        seen = mine(np.array(train, dtype=float), np.array(val, dtype=float))
        names = ("diverged", "stuck", "overfit", "falls")
        expect(isinstance(seen, str) and seen in names, f"Expected one of {', '.join(names)}, got {short(seen)}.")
        expect(seen == right, f"{what}: expected {right!r}, got {seen!r}. {otherwise}")

    level, well = np.full(100, 2.3), [2.3, 0.8, 0.4, 0.3]
    expect_shape(falling(2.3, 0.1), well, "falls", "A healthy run")
    late = falling(2.3, 0.5)
    late[-3:] = np.nan
    never = "Every comparison with a NaN is False, so no threshold catches it. Use np.isfinite."
    expect_shape(late, well, "diverged", "A run that ends in NaN", never)
    expect_shape(falling(2.3, 0.5), [2.3, 1.0, np.inf], "diverged", "Training is fine, the validation loss is infinite")
    jump = level.copy()
    jump[4:8] = 3e5
    back = "It jumped to 100,000 times its first loss and came back to chance. Look at all values, and test this first."
    expect_shape(jump, [2.3, 2.3, 2.3], "diverged", "A jump in the middle", back)
    expect_shape(level, [2.3, 2.3, 2.3], "stuck", "A flat line")
    lucky = level.copy()
    lucky[-1] = 1.6
    batch = "Only the last batch was an easy one. Take the mean of the last 20."
    expect_shape(lucky, [2.3, 2.3, 2.3], "stuck", "A flat line with one low value at its end", batch)
    lowest = "The last validation loss is three times the lowest one. Compare with the lowest, not with the first."
    expect_shape(falling(2.3, 1e-4), [2.5, 1.1, 2.0, 3.3], "overfit", "Memorised", lowest)
    expect_shape(falling(2.3, 1e-3), [4.0, 1.0, 2.0, 2.5], "overfit", "Memorised, slowly", lowest)
    near = falling(2.3, 0.3)
    near[5] = 30.0
    expect_shape(near, well, "diverged", "A jump to 13 times the first loss", "The rule says above 10 times.")
    near[5] = 18.0
    expect_shape(near, well, "falls", "A jump to 8 times the first loss", "The rule says above 10 times.")
    nine = "The rule says above 0.9 times the first one."
    expect_shape(falling(2.3, 2.15), [2.3, 2.2], "stuck", "A loss that ends at 0.94 of its first", nine)
    expect_shape(falling(2.3, 1.8), [2.3, 1.9], "falls", "A loss that ends at 0.8 of its first", nine)
    rise = "The rule says above 1.3 times the lowest."
    expect_shape(falling(2.3, 0.01), [2.3, 0.5, 0.7], "overfit", "A last validation loss of 1.4 times the lowest", rise)
    small = "A rise by a tenth is noise; the rule says 1.3 times."
    expect_shape(falling(2.3, 0.2), [2.3, 0.5, 0.55], "falls", "A small rise at the end", small)
    order = "Two rules match. The first in the list counts: a net that learned nothing cannot overfit."
    expect_shape(level, [2.3, 2.2, 3.5], "stuck", "A flat line, and a validation loss that rises", order)
    expect_shape([2.3, 1.5, 1.0, 0.6, 0.2], well, "falls", "Five steps only", "Does it work on a short run?")
    return "NaN, jumps, easy batches and noise are all classified correctly."


# --- 02.2: experiments ---

# Two failures with the same curve, and the one change of the recipe that tells them apart.
PAIRS = {
    "P": ("underfit", "schedule_too_short"),
    "Q": ("sorted_data", "learning_rate_too_high_late"),
    "R": ("batch_too_small", "learning_rate_too_high_late"),
    "S": ("too_few_samples", "dropout_at_validation"),
}
EXPERIMENTS: dict[str, dict] = {
    "constant learning rate": {"schedule": "constant"},
    "shuffle": {"batches": "shuffled"},
    "larger batch": {"batch_size": 128},
    "validate in eval mode": {"evaluate": "plain_evaluate"},
}
TELLS = dict(zip(PAIRS, EXPERIMENTS, strict=True))
STEPS = 120


def before_and_after(pair: str, experiment: str) -> dict[str, tuple[Run, Run]]:
    """Both failures of a pair, as they are and with the experiment's change."""
    found = {}
    for name in PAIRS[pair]:
        recipe = FAILURES[name].sick.but(steps=STEPS)
        changed = recipe.but(**EXPERIMENTS[experiment])
        found[name] = (train(recipe, progress=False), train(changed, progress=False))
    return found


# --- 02.3 and 02.4: sealed runs ---

SEALED = {
    "X": FAILURES["corrupt_sample"].sick.but(seed=SEED),
    "Y": FAILURES["schedule_too_short"].sick.but(data="cifar10", steps=200, seed=SEED),
}


def sealed(letter: str) -> Run:
    """A run to be diagnosed, without its recipe."""
    return dataclasses.replace(train(SEALED[letter], progress=False), recipe={})


# --- 02.5: a loop that meets a corrupt batch ---

CORRUPT, FACTOR = 70, 100.0  # which batch, and what its pixels are multiplied by


class OneCorruptBatch(Batches):
    """One batch is out of another file: pixels a hundred times as large, and the labels of other images."""

    given = 0

    def __iter__(self) -> Iterator:
        for x, y in super().__iter__():
            self.given += 1
            if self.given == CORRUPT:
                x, y = self.latest = x * FACTOR, y.roll(1)
            yield x, y


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def sgd(weights) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


def with_a_corrupt_batch(seed: int) -> Setting:
    made = images(small_net, sgd)(seed)
    order = torch.Generator().manual_seed(seed)
    loader = OneCorruptBatch(made.loader.dataset, batch_size=64, shuffle=True, generator=order)
    return dataclasses.replace(made, arguments=(made.model, made.optimizer, loader))


def train_with_a_limit(model, optimizer, loader) -> None:
    """The reference: three epochs with the norm of the gradient limited to 1."""
    model.train()
    for _ in range(3):
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


# --- 02.6: rhythm ---


def sawtooth(period: int, steps: int = 300, noise: float = 0.1) -> np.ndarray:
    draw = np.random.default_rng(period)
    return (2.3 - 1.5 * (np.arange(steps) % period) / period) * np.exp(noise * draw.standard_normal(steps))


def judge_rhythm(mine: Student) -> str:
    def expect_period(losses, right: int | None, what: str, otherwise: str) -> None:
        seen = mine.call_or_none(np.array(losses, dtype=float))
        if right is None:
            expect(seen is None, f"{what}: expected None, got {short(seen)}. {otherwise}")
            return
        expect(seen is not None, f"{what}: expected about {right}, got None. {otherwise}")
        seen = number(seen, "the period")
        expect(abs(seen - right) <= 1, f"{what}: expected about {right}, got {seen:g}. {otherwise}")

    first = "A sawtooth repeats at 2, 3, 4 ... periods too. Take the first peak, not the largest lag."
    expect_period(sawtooth(13), 13, "A noisy sawtooth with 13 steps per tooth", first)
    expect_period(sawtooth(40), 40, "A noisy sawtooth with 40 steps per tooth", first)
    draw = np.random.default_rng(0)
    none = "Independent noise has an autocorrelation of about 1/sqrt(steps) at every lag."
    expect_period(2 + 0.3 * draw.standard_normal(300), None, "Noise around a level loss", none)
    falling = np.geomspace(2.3, 0.1, 300) * np.exp(0.2 * draw.standard_normal(300))
    trend = "Neighbours are alike in any falling curve: take the trend out first."
    expect_period(falling, None, "A falling loss with noise", trend)
    healthy = train(Recipe(steps=300, evaluate_every=0, seed=11), progress=False)["loss"]
    expect_period(healthy, None, "A healthy run on digits", trend)
    data = FAILURES["sorted_data"].sick.but(steps=200, evaluate_every=0, seed=11)
    classes = "Ten classes of about 1,000 images in batches of 128 make teeth of 7.8 steps."
    expect_period(train(data, progress=False)["loss"], 8, "A run on sorted data", classes)
    return "It finds the period of each sawtooth, and none in noise and in falling curves."


predictions = (
    prediction(
        "02.0",
        correct=2,
        why="A net that can memorise all it sees drives the training loss as low as you like. The same net has by far "
        "the widest gap to its validation loss.",
        wrong={
            1: "It has a hundred times as many images to fit.",
            3: "Noisy steps keep it from settling anywhere.",
        },
    ),
    prediction(
        "02.0b",
        correct=2,
        why="Only where the step itself is too short does a longer one help. Where no gradient arrives, ten times "
        "nothing is nothing.",
        choices=4,
        wrong={
            1: "One of them is cured by it.",
            3: "Look at the gradients of the first layer.",
            4: "In two of them no gradient arrives.",
        },
    ),
)

exercises = (
    build(
        "02.1",
        "The shape of a curve",
        judge_shape,
        example="shape(train, val)",
        points=3,
        hints=(
            "Test the rules in the order of the list, each with a return; the last return needs no test.",
            "np.isfinite(train).all() is False as soon as one value is NaN or infinite. Test both arrays.",
            "train[-20:].mean() works for shorter arrays too. val.min() is the lowest validation loss.",
        ),
    ),
    explain(
        "02.2",
        "Design the experiment that tells them apart",
        modes=tuple(dict.fromkeys(name for pair in PAIRS.values() for name in pair)),
        points=3,
        right=TELLS,
        because="P: only a schedule that had ended falls again. Q: only a sawtooth of the order of the data vanishes. "
        "R: only the noise of small batches does. S: only a validation in the wrong mode improves, without any "
        "training.",
        wrong={
            "P": {
                "shuffle": "both are shuffled already, so the result is the same for both.",
                "larger batch": "both have batches of 128 already.",
                "validate in eval mode": "neither has dropout or batch norm: both modes give the same.",
            },
            "Q": {
                "constant learning rate": "both have one already.",
                "larger batch": "both have batches of 128 already.",
                "validate in eval mode": "the training losses look alike, and this does not touch them.",
            },
            "R": {
                "constant learning rate": "both have one already.",
                "shuffle": "both are shuffled already.",
                "validate in eval mode": "the training losses look alike, and this does not touch them.",
            },
            "S": {
                "constant learning rate": "both have one already.",
                "shuffle": "both are shuffled already.",
                "larger batch": "it changes the training. Is the net at fault, or its validation?",
            },
        },
        hints=(
            "An experiment tells two failures apart if it changes the curve of one and not that of the other.",
            "For each pair: which entry of the recipe is wrong in one of the two, and already right in the other?",
            "Q: data in the wrong order. R: too few samples per step. S: dropout that was left on.",
        ),
    ),
    diagnose(
        "02.3",
        "Run X: what happened?",
        failure="corrupt_sample",
        evidence={"input_outliers": (0.004, 0.02)},
        wrong={
            "corrupt_batch": "look at how many samples of that batch are unusual.",
            "learning_rate_too_high": "for hundreds of steps it was fine. What came in when it jumped?",
            "exploding_gradients": "the gradient followed from what came in.",
        },
        because="One image of 128 was broken, 0.8 % of the batch. The batch is not from a wrong file: look for a "
        "single damaged record, and validate records when they are read.",
        points=2,
        hints=(
            "Find the step where the loss jumps, and read the other traces there and one step before.",
            "Gradients only tell that it was bad. The traces that begin with `input_` look at what came in.",
            "labkit.FAILURES has two names that begin with `corrupt_`. A share of 1/128 tells which.",
        ),
    ),
    diagnose(
        "02.4",
        "Run Y, on photographs: why does it stop?",
        failure="schedule_too_short",
        evidence={"lr": (0.0, 1e-4)},
        wrong={
            "underfit": "the loss would be level because the net can do no better. Does the net still move at all?",
            "learning_rate_too_low": "it was an ordinary one in the first steps.",
            "plateau": "on a plateau the learning rate is still at work.",
            "training_not_finished": "it stopped improving long before the end. What stopped it?",
        },
        because="The learning rate reached 0 at step 40 of 200. On photographs a loss of 1.8 looks like underfitting, "
        "and a larger net would have changed nothing.",
        points=2,
        hints=(
            "A loss that is level has three causes: no signal, no capacity, no step. Which trace looks at each?",
            "Is the update per weight (`update_ratio`) still of an ordinary size at the end?",
            "An update is learning rate times gradient: run['grad_norm_total'][-1] and run['lr'][-1].",
        ),
    ),
    loop(
        "02.5",
        "Survive the corrupt batch",
        with_a_corrupt_batch,
        train_with_a_limit,
        free_of=(),  # the batch stays corrupt, and the diagnosis says so
        also=lambda outcome: f"{outcome.accuracy:.1%} correct on other images with another seed, bad batch included.",
        margin=0.05,
        modes=("corrupt_batch",),
        points=3,
        hints=(
            "The loss of that batch will jump whatever you do. The update must stay small.",
            "An update is learning rate times gradient. Which of the two jumped, and can you limit it?",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) belongs between backward() and step().",
        ),
    ),
    build(
        "02.6",
        "Optional: is there a rhythm?",
        judge_rhythm,
        example="rhythm(losses)",
        points=0,
        hints=(
            "y = np.diff(np.log(losses)) has no trend left, and the jumps of a sawtooth stand out.",
            "The autocorrelation at lag k is sum(y[:-k] * y[k:]) / sum(y * y). Noise stays below 0.25 for 300 steps.",
            "The period is the first local maximum above 0.3, at a lag of 3 or more.",
        ),
    ),
)
