"""Exercises of lesson 04, schedules and warmup; and its sealed patients."""

import warnings
from itertools import pairwise

import torch

from labkit.course.grading import Student, build, cure, expect, expect_close, explain, sealed_runs
from labkit.recording.run import Run
from labkit.tools.schedules import preview
from labkit.training.parts import warmup_cosine
from labkit.training.recipe import Recipe

# --- the sealed patients of 04.4: five losses that plateau too high ---

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


# --- 04.1 ---


def judge_warmup_cosine(mine: Student) -> str:
    steps, warmup, peak = 50, 10, 0.4
    first = float(mine(0, steps, warmup, peak))
    expect(first != 0, "Step 0 has a learning rate of 0: the first batch is wasted. Start at peak / warmup.")
    expect_close(first, 0.04, "The first of 10 steps up to 0.4")
    rates = [float(mine(step, steps, warmup, peak)) for step in range(steps + 30)]
    judge_after_last_step(rates, steps, peak)
    expect(max(rates) <= peak * (1 + 1e-6), f"It rises to {max(rates):.3g}, above the peak of {peak}.")
    jumps = max(abs(after - before) for before, after in pairwise(rates))
    expect(
        jumps < 0.06, f"It jumps by {jumps:.2g} from one step to the next. The cosine must start where the warmup ends."
    )
    expect_close(rates[warmup - 1], peak, "The last step of the warmup")
    expect_close(rates[warmup], peak, "The first step after the warmup, where the cosine starts")
    for count in (10, 0, 1, 25):
        recipe = Recipe(steps=steps, warmup=count, lr=peak)
        theirs = preview(warmup_cosine, steps + 30, recipe).tolist()
        seen = [float(mine(step, steps, count, peak)) for step in range(steps + 30)]
        expect_close(seen[:steps], theirs[:steps], f"{steps} steps with a warmup of {count}")
        judge_after_last_step(seen, steps, peak)
    return "It starts above 0, peaks once, ends at 0 and stays there; and it works without warmup."


def judge_after_last_step(rates: list[float], steps: int, peak: float) -> None:
    beyond = rates[steps:]
    expect(min(beyond) > -1e-9, "Beyond the last step the learning rate is negative: that increases the loss.")
    words = f"Beyond step {steps} it rises again, to {max(beyond):.2g}. Clamp the progress of the cosine: min(1, ...)."
    expect(
        max(beyond) < 1e-6 * peak, words if beyond[0] < max(beyond) else f"At step {steps} it should have reached 0."
    )


# --- 04.2 ---


def judge_rates_used(mine: Student) -> str:
    for lr, factor, epochs, batches in ((0.1, 0.5, 3, 4), (2.0, 0.9, 5, 1), (0.3, 0.1, 1, 7)):
        rates, taken, asked, warned = run_loop(mine, lr, factor, epochs, batches)
        case = f"{epochs} epochs of {batches} batches, times {factor} per epoch"
        expect(taken == epochs * batches, f"{case}: expected {epochs * batches} optimizer steps, got {taken}.")
        if batches > 1:
            expect(
                asked != epochs * batches,
                f"{case}: the scheduler stepped after every batch. It is indented one level too far.",
            )
        expect(not warned, f"{case}: the scheduler stepped before the first optimizer step. Call it after the epoch.")
        expect(asked == epochs, f"{case}: expected {epochs} scheduler steps, got {asked}.")
        expected = [lr * factor**epoch for epoch in range(epochs) for _ in range(batches)]
        expect_close(rates, expected, f"{case}, the learning rates that were used")
    return "The learning rate of each step as it was used, and one scheduler step at the end of each epoch."


def run_loop(mine: Student, lr: float, factor: float, epochs: int, batches: int) -> tuple:
    """What the loop returns, its optimizer and scheduler steps, and whether they came in the wrong order."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, factor)
    taken = []
    optimizer.register_step_post_hook(lambda *_: taken.append(1))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rates = mine.in_place(optimizer, scheduler, epochs, batches)
    early = any("lr_scheduler.step()" in str(each.message) for each in said)
    return rates, len(taken), scheduler.last_epoch, early


# --- 04.3 is a cure, 04.4 the evidence ---

CONSTANT = "its learning rate is the same from the first step to the last, so it has no schedule."
FALLS = "its learning rate falls. "
RISES = "its learning rate rises from step to step until the end."

exercises = (
    build(
        "04.1",
        "Warmup and cosine",
        judge_warmup_cosine,
        example="warmup_cosine(step, steps, warmup, peak)",
        points=3,
        hints=(
            "Two cases: during the warmup, and after it. What is the learning rate of its first step, and of its last?",
            "Step < warmup: peak * (step + 1) / warmup. After it, how much of the rest is done? "
            "(step - warmup) / (steps - warmup), and never above 1.",
            "Half a cosine from 1 to 0, for `done` from 0 to 1: (1 + cos(pi * done)) / 2.",
        ),
    ),
    build(
        "04.2",
        "The right indent",
        judge_rates_used,
        example="rates_used(optimizer, scheduler, epochs, batches)",
        points=2,
        hints=(
            "Two nested loops. Which of the two does the scheduler belong to?",
            "The learning rate is in optimizer.param_groups[0]['lr']. Record it before the step that uses it.",
            "scheduler.step() goes after the inner loop, at the same indent, not inside it.",
        ),
    ),
    cure(
        "04.3",
        "A fast start and a smooth end",
        "learning_rate_too_high_late",
        keep=("lr", "steps"),
        seeds=(11,),
        points=3,
        hints=(
            "The learning rate at the start is good. What should it be at the end?",
            "The entry is `schedule`. labkit.Recipe lists the choices when you try an unknown one.",
            "Any schedule that decays to 0 at the last step.",
        ),
    ),
    explain(
        "04.4",
        "Five losses that plateau too high",
        modes=tuple(SEALED.values()),
        points=5,
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
                "warmup_too_long": FALLS + "A warmup rises.",
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
                "warmup_too_long": FALLS + "A warmup rises.",
            },
        },
        hints=(
            "Sort the learning rates first: two are constant, two fall, one rises.",
            "Of the constant ones, one is high and its loss oscillates; one is low and its loss still falls.",
            "Of the falling ones, one decays by the same factor at every step. A cosine hardly falls at the start.",
        ),
    ),
)
