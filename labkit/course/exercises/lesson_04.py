"""Exercises of lesson 04, schedules and warm-up; its sealed runs, and its stored runs by schedule."""

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from labkit.course.grading import (
    NotYet,
    Student,
    build,
    cure,
    expect,
    expect_close,
    explain,
    sealed_runs,
    short,
)
from labkit.course.loops import Outcome, Setting, images, loop
from labkit.course.predictions import prediction
from labkit.failures.catalogue import FAILURES
from labkit.recording.files import written_whole
from labkit.recording.run import Run
from labkit.tools.schedules import preview
from labkit.training.loop import train
from labkit.training.parts import warmup_cosine, warmup_cosine_to_tenth
from labkit.training.recipe import Recipe

# --- the sealed patients of 04.5: five losses that plateau too high ---

SEALED = {
    "A": "learning_rate_left_low",
    "B": "schedule_too_short",
    "C": "warmup_too_long",
    "D": "learning_rate_too_high_late",
    "E": "scheduler_stepped_per_batch",
}
OWN = {"A": {"steps": 400}}  # 200 steps are enough for the others


def patients() -> dict[str, Run]:
    """Five runs, named by letters. The student finds which failure each one shows."""
    return sealed_runs(SEALED, OWN, steps=200)


# --- accuracy by schedule, stored: 75 runs would take too long for a lesson ---

TABLE = Path(__file__).with_name("lesson_04.json")
SEEDS = (0, 1, 2, 3, 4)
TRANSFORMER_SEEDS = (0, 1, 2)
PERIOD = 100  # steps of one cycle, up and down: four in a run


def cosine_to_tenth(step: int, recipe: Recipe) -> float:
    """Cosine decay with a floor: to a tenth of the peak, not to 0."""
    return warmup_cosine_to_tenth(step, recipe.but(warmup=0))


def triangular(step: int, recipe: Recipe) -> float:
    """A cyclical learning rate: in a straight line from a tenth of the peak up to it and down again."""
    place = step % PERIOD / PERIOD
    return recipe.lr * (0.1 + 0.9 * (1 - abs(2 * place - 1)))


def warmup_then_constant(step: int, recipe: Recipe) -> float:
    """A warm-up without any decay after it."""
    return recipe.lr * min(1.0, (step + 1) / recipe.warmup)


SCHEDULES: dict[str, str | Callable] = {
    "constant": "constant",
    "cosine": "cosine",
    "cosine with a floor": cosine_to_tenth,
    "warm-up and cosine": "warmup_cosine",
    "one-cycle": "one_cycle",
    "cyclical": triangular,
}
LATE, COLD = FAILURES["learning_rate_too_high_late"].healthy, FAILURES["warmup_missing"].healthy
SETTINGS = {"calm: learning rate 0.1": Recipe(), "hot: 0.5 with momentum 0.9": LATE}
TRANSFORMERS = {
    "warm-up and cosine": COLD,
    "cosine alone": COLD.but(schedule="cosine"),
    "warm-up alone": COLD.but(schedule=warmup_then_constant),
    "neither": COLD.but(schedule="constant"),
    "neither, learning rate 0.003": COLD.but(schedule="constant", lr=COLD.lr / 10),
}


def stored() -> dict[str, dict[str, list[float]]]:
    """Setting -> schedule -> validation accuracy of each seed, as measured."""
    return json.loads(TABLE.read_text(encoding="utf-8"))["accuracy"]


def recipes() -> dict[str, dict[str, Recipe]]:
    """The runs of the table, without their seeds."""
    found = {
        words: {name: recipe.but(schedule=each) for name, each in SCHEDULES.items()}
        for words, recipe in SETTINGS.items()
    }
    return found | {"transformer": TRANSFORMERS}


def scores(recipe: Recipe, seeds: tuple[int, ...]) -> list[float]:
    runs = [train(recipe.but(seed=seed, evaluate_every=recipe.steps), progress=False) for seed in seeds]
    return [round(float(run["val_accuracy"][-1]), 4) for run in runs]


def renew(path: Path = TABLE) -> None:
    """Train all of them again and write the table: `python -m labkit.course.exercises.lesson_04`."""
    accuracy = {
        words: {
            name: scores(recipe, TRANSFORMER_SEEDS if words == "transformer" else SEEDS)
            for name, recipe in rows.items()
        }
        for words, rows in recipes().items()
    }
    made_of = {
        "seeds": SEEDS,
        "of the transformer": TRANSFORMER_SEEDS,
        "period": PERIOD,
        "torch": torch.__version__,
        "recipes": {words: {name: each.summary() for name, each in rows.items()} for words, rows in recipes().items()},
    }
    with written_whole(path) as stream:
        stream.write((json.dumps({"made of": made_of, "accuracy": accuracy}, indent=1) + "\n").encode())


# --- 04.1 ---


def judge_warmup_cosine(mine: Student) -> str:
    steps, warmup, peak = 50, 10, 0.4
    first = float(mine(0, steps, warmup, peak, 0.0))
    expect(first != 0, "Step 0 has a learning rate of 0: the first batch is wasted. Start at peak / warmup.")
    expect_close(first, 0.04, "The first of 10 steps up to 0.4")
    rates = [float(mine(step, steps, warmup, peak, 0.0)) for step in range(steps + 30)]
    judge_after_last_step(rates, steps, peak)
    expect(max(rates) <= peak * (1 + 1e-6), f"It rises to {max(rates):.3g}, above the peak of {peak}.")
    jumps = max(abs(after - before) for before, after in pairwise(rates))
    expect(
        jumps < 0.06,
        f"It jumps by {jumps:.2g} between two steps. The cosine must start where the warm-up ends.",
    )
    expect_close(rates[warmup - 1], peak, "The last step of the warm-up")
    expect_close(rates[warmup], peak, "The first step after the warm-up, where the cosine starts")
    for count in (10, 0, 1, 25):
        recipe = Recipe(steps=steps, warmup=count, lr=peak)
        theirs = preview(warmup_cosine, steps + 30, recipe).tolist()
        seen = [float(mine(step, steps, count, peak, 0.0)) for step in range(steps + 30)]
        expect_close(seen[:steps], theirs[:steps], f"{steps} steps with a warm-up of {count}")
        judge_after_last_step(seen, steps, peak)
    judge_floor(mine, Recipe(steps=steps, warmup=warmup, lr=peak))
    return "It starts above 0, peaks once, ends at its floor and stays there; and it works without warm-up."


def judge_floor(mine: Student, recipe: Recipe) -> None:
    """With a floor of a tenth of the peak, where labkit has the same schedule."""
    floor, count = recipe.lr / 10, recipe.steps + 30
    seen = [float(mine(step, recipe.steps, recipe.warmup, recipe.lr, floor)) for step in range(count)]
    expect(
        min(seen[recipe.steps :]) >= floor * (1 - 1e-6),
        f"With a floor of {floor:g} it ends at {min(seen[recipe.steps :]):.2g}. The cosine must end at the floor.",
    )
    theirs = preview(warmup_cosine_to_tenth, count, recipe).tolist()
    expect_close(seen, theirs, f"{recipe.steps} steps with a floor of {floor:g}")


def judge_after_last_step(rates: list[float], steps: int, peak: float) -> None:
    beyond = rates[steps:]
    expect(min(beyond) > -1e-9, "Beyond the last step the learning rate is negative: that increases the loss.")
    words = f"Beyond step {steps} it rises again, to {max(beyond):.2g}. Clamp the progress of the cosine: min(1, ...)."
    expect(
        max(beyond) < 1e-6 * peak, words if beyond[0] < max(beyond) else f"At step {steps} it should have reached 0."
    )


# --- 04.2 ---

EPOCHS, DECAY = 3, 0.9


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def with_a_scheduler(seed: int) -> Setting:
    """The net, its optimizer, a scheduler that is made for epochs, the loader and the number of epochs."""
    plain = images(small_net, lambda weights: torch.optim.SGD(weights, lr=0.1))(seed)
    scheduler = ExponentialLR(plain.optimizer, DECAY)
    return Setting((plain.model, plain.optimizer, scheduler, plain.loader, EPOCHS), plain.held_out)


def stepping_per_epoch(model, optimizer, scheduler, loader, epochs: int) -> None:
    """The scheduler's step at the end of its unit, the epoch."""
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()


def judge_rates(outcome: Outcome) -> str:
    batches, rates = len(outcome.setting.loader), outcome.run["lr"]
    expect(
        len(rates) == EPOCHS * batches,
        f"{EPOCHS} epochs of {batches} batches: expected {EPOCHS * batches} optimizer steps, got {len(rates)}.",
    )
    expected = [0.1 * DECAY**epoch for epoch in range(EPOCHS) for _ in range(batches)]
    firsts = [round(float(rate), 4) for rate in rates[::batches]]
    expect_close(rates, expected, f"The learning rates of the epochs began with {firsts}; the learning rates")
    return f"The learning rates of the {EPOCHS} epochs are {firsts}: one step of the scheduler after each."


# --- 04.4 ---

PARTS = ("model", "optimizer", "scheduler")
STEPS_BEFORE, STEPS_AFTER = 6, 5


def interrupted_job(seed: int = 5) -> tuple:
    """A net, SGD with momentum, a decaying schedule, and batches for the steps before and after the checkpoint."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
        batches = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(STEPS_BEFORE + STEPS_AFTER)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda step: 0.8**step)
    return model, optimizer, scheduler, batches


def take_steps(model, optimizer, scheduler, batches) -> list[float]:
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def judge_checkpoint(mine: Student) -> str:
    *job, batches = interrupted_job()
    take_steps(*job, batches[:STEPS_BEFORE])
    saved = mine.in_place(*job, STEPS_BEFORE)
    expect(isinstance(saved, dict), f"Expected a dict, got {short(saved)}.")
    missing = [name for name in (*PARTS, "step") if name not in saved]
    expect(not missing, f"The checkpoint has no {' and no '.join(map(repr, missing))}.")
    expect(saved["step"] == STEPS_BEFORE, f"'step': expected {STEPS_BEFORE}, got {short(saved['step'])}.")
    kept = copy.deepcopy(saved)
    losses = take_steps(*job, batches[STEPS_BEFORE:])  # the job goes on, as jobs do
    *fresh, _ = interrupted_job(seed=6)
    for name, part in zip(PARTS, fresh, strict=True):
        expect(
            same(saved[name], kept[name]),
            f"The job trained on, and the checkpoint's {name!r} changed with it. state_dict() returns the tensors "
            "themselves: copy.deepcopy it (torch.save makes a copy, a dict in memory does not).",
        )
        try:
            part.load_state_dict(saved[name])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
            raise NotYet(f"{name!r} cannot be loaded: expected its state_dict(), got {short(saved[name])}.") from None
    again = take_steps(*fresh, batches[STEPS_BEFORE:])
    expect_close(again, losses, "Loaded into a fresh job, the next losses", tolerance=1e-5)
    return "Loaded into a fresh job, it goes on exactly as the first one did, loss for loss."


def same(one, other) -> bool:
    """Two states, dicts of tensors and plain values, with equal entries?"""
    if torch.is_tensor(one):
        return torch.is_tensor(other) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return callable(one) or one == other


def checkpointed(model, optimizer, scheduler, step: int) -> dict:
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()} | {"step": step}


# --- 04.6 ---


def judge_adam(mine: Student) -> str:
    generator = torch.Generator().manual_seed(4)
    noisy = torch.randn(8, generator=generator).tolist()
    for gradients, words in (
        ([1e-3], "A first gradient of 0.001"),
        ([-50.0], "A first gradient of -50"),
        ([2.0] * 6, "Six gradients of 2"),
        (noisy, "Eight random gradients"),
    ):
        seen = mine(gradients, 0.1, 0.9, 0.999)
        expect(hasattr(seen, "__len__"), f"{words}: expected a list of changes, got {short(seen)}.")
        expect(len(seen) == len(gradients), f"{words}: expected {len(gradients)} changes, got {len(seen)}.")
        expected = adam_changes(gradients, 0.1, 0.9, 0.999)
        expect(
            not torch.allclose(torch.tensor([float(each) for each in seen]), -torch.tensor(expected), rtol=1e-3),
            f"{words}: the right size and the wrong sign. The change of the weight goes against the gradient.",
        )
        expect_close([float(each) for each in seen], expected, f"{words}, the changes of the weight", tolerance=1e-3)
    return "The same changes as torch's Adam makes."


def adam_changes(gradients: list[float], lr: float, beta1: float, beta2: float) -> list[float]:
    """What torch's Adam makes of a series of gradients of one weight."""
    weight = torch.zeros(1, requires_grad=True, dtype=torch.float64)
    optimizer = torch.optim.Adam([weight], lr=lr, betas=(beta1, beta2))
    places = [0.0]
    for gradient in gradients:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        places.append(weight.item())
    return [after - before for before, after in pairwise(places)]


# --- predictions ---

predictions = (
    prediction(
        "04.0",
        correct=3,
        why="After step 40 the learning rate is 0, and weights that do not move give the same loss on the same "
        "images, digit for digit. Only the training loss flickers on, because every batch is another one.",
        wrong={1: "For that the weights would have to move.", 2: "To overfit, a net has to learn something first."},
    ),
    prediction(
        "04.0b",
        correct=1,
        why="Each entry of Adam's first step has the length of the learning rate, whatever its gradient: 0.03. The "
        "position embeddings begin with a standard deviation of 0.02. One step, and one batch, rewrites them.",
        wrong={2: "That is SGD. Adam divides by the size of the gradient."},
    ),
)

# --- 04.3 is a cure, 04.5 the evidence ---

CONSTANT = "its learning rate is the same from the first step to the last, so it has no schedule."
FALLS = "its learning rate falls. "
RISES = "its learning rate rises from step to step until the end."

exercises = (
    build(
        "04.1",
        "Warm-up and cosine",
        judge_warmup_cosine,
        example="warmup_cosine(step, steps, warmup, peak, floor)",
        points=3,
        hints=(
            "Two cases: during the warm-up, and after it. What is the learning rate of its first step, of its last?",
            "Step < warmup: peak * (step + 1) / warmup. After it, how much of the rest is done? "
            "(step - warmup) / (steps - warmup), and never above 1.",
            "Half a cosine from 1 to 0, for `done` from 0 to 1: (1 + cos(pi * done)) / 2. It scales what is above the "
            "floor.",
        ),
    ),
    loop(
        "04.2",
        "One indent too far",
        with_a_scheduler,
        stepping_per_epoch,
        example="train(model, optimizer, scheduler, loader, epochs)",
        free_of=("scheduler_stepped_per_batch", "schedule_too_short"),
        also=judge_rates,
        points=2,
        hints=(
            "Two nested loops. Which of the two does the scheduler belong to?",
            "ExponentialLR was made for epochs: one scheduler.step() for each of them.",
            "scheduler.step() goes after the inner loop, at the same indent as its `for`.",
        ),
    ),
    cure(
        "04.3",
        "A fast start and a smooth end",
        "learning_rate_too_high_late",
        keep=("lr", "steps"),
        seeds=(11,),
        points=2,
        hints=(
            "The learning rate at the start is good. What should it be at the end?",
            "The entry is `schedule`. labkit.Recipe lists the choices when you try an unknown one.",
            "Any schedule that decays to 0 at the last step.",
        ),
    ),
    build(
        "04.4",
        "A checkpoint that resumes",
        judge_checkpoint,
        example="checkpoint(model, optimizer, scheduler, step)",
        points=3,
        modes=("resumed_without_state",),
        hints=(
            "What changes while a net trains? Its weights, and two more things that have a state_dict().",
            "state_dict() does not copy. What happens to your dict when training goes on?",
            "copy.deepcopy(part.state_dict()) for 'model', 'optimizer' and 'scheduler', and the 'step'.",
        ),
    ),
    explain(
        "04.5",
        "Five losses that plateau too high",
        modes=tuple(SEALED.values()),
        points=3,
        right=SEALED,
        because="A falls smoothly and slowly at a constant low learning rate; D oscillates at a constant high one; B "
        "follows its cosine to 0, too early; E decays by the same factor at every step; and C is still warming up at "
        "the end.",
        wrong={
            "A": {
                "learning_rate_too_high_late": "its loss falls smoothly all the time. With too high a learning "
                "rate it would oscillate.",
                "schedule_too_short": CONSTANT,
                "scheduler_stepped_per_batch": CONSTANT,
                "warmup_too_long": CONSTANT,
            },
            "B": {
                "learning_rate_left_low": FALLS + "To which value, and at which step?",
                "learning_rate_too_high_late": FALLS + "At the end it is not too high: it is 0.",
                "scheduler_stepped_per_batch": "divide its learning rates at steps 1 and 0, then 2 and 1: nearly "
                "1, so not a factor of 0.9. The curve bends like a cosine.",
                "warmup_too_long": FALLS + "A warm-up rises.",
            },
            "C": {
                "learning_rate_left_low": "close: its learning rate is low, but not constant. Look at its last value.",
                "learning_rate_too_high_late": RISES + " Its loss falls until the end.",
                "schedule_too_short": RISES,
                "scheduler_stepped_per_batch": RISES,
            },
            "D": {
                "learning_rate_left_low": "compare its learning rate and its updates with the others': they are "
                "the largest.",
                "schedule_too_short": CONSTANT,
                "scheduler_stepped_per_batch": CONSTANT,
                "warmup_too_long": CONSTANT,
            },
            "E": {
                "learning_rate_left_low": FALLS + "By how much from step 0 to 1, and from 1 to 2?",
                "learning_rate_too_high_late": FALLS + "At the end it is almost 0.",
                "schedule_too_short": "a cosine starts flat. This learning rate loses a tenth at every step, "
                "from the first on.",
                "warmup_too_long": FALLS + "A warm-up rises.",
            },
        },
        hints=(
            "Sort the learning rates first: two are constant, two fall, one rises.",
            "Of the constant ones, one is high and its loss oscillates; one is low and its loss still falls.",
            "Of the falling ones, one decays by the same factor at every step. A cosine hardly falls at the start.",
        ),
    ),
    build(
        "04.6",
        "Adam by hand",
        judge_adam,
        example="adam_changes(gradients, lr, beta1, beta2)",
        points=0,
        hints=(
            "Two running averages, of the gradient and of its square; both begin at 0.",
            "The average after t steps is too small by a factor of 1 - beta ** t: divide by it.",
            "m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; change = -lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + "
            "1e-8).",
        ),
    ),
)


if __name__ == "__main__":
    renew()
