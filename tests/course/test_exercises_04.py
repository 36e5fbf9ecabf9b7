"""Lesson 04's exercises: each usual mistake gets its own words, and right answers are right."""

import copy
from math import cos, pi

import numpy as np
import pytest
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_04
from labkit.failures.catalogue import FAILURES


def right(step, steps, warmup, peak, floor):
    if step < warmup:
        return peak * (step + 1) / warmup
    return floor + (peak - floor) * (1 + cos(pi * min(1.0, (step - warmup) / (steps - warmup)))) / 2


def without_floor(step, steps, warmup, peak, floor):
    return right(step, steps, warmup, peak, 0.0)


def floor_as_a_limit(step, steps, warmup, peak, floor):
    return max(floor, right(step, steps, warmup, peak, 0.0))


def from_zero(step, steps, warmup, peak, floor):
    return peak * step / warmup if step < warmup else right(step, steps, warmup, peak, floor)


def unclamped(step, steps, warmup, peak, floor):
    if step < warmup:
        return right(step, steps, warmup, peak, floor)
    return peak * (1 + cos(pi * (step - warmup) / (steps - warmup))) / 2


def cosine_from_step_zero(step, steps, warmup, peak, floor):
    return right(step, steps, warmup, peak, floor) if step < warmup else right(step, steps, 0, peak, floor)


def too_long(step, steps, warmup, peak, floor):
    return right(step, steps + warmup, warmup, peak, floor)


def straight(step, steps, warmup, peak, floor):
    return (
        right(step, steps, warmup, peak, floor) if step < warmup else peak * max(0.0, (steps - step) / (steps - warmup))
    )


def negative(step, steps, warmup, peak, floor):
    return right(step, steps, warmup, peak, floor) if step < steps else -0.1


def needs_warmup(step, steps, warmup, peak, floor):
    up = peak * (step + 1) / warmup
    return (
        min(up, right(step, steps, warmup, peak, floor)) if step < warmup else right(step, steps, warmup, peak, floor)
    )


def test_a_right_schedule_is_right():
    assert labkit.check("04.1", right)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (from_zero, "the first batch is wasted"),
        (unclamped, "rises again"),
        (cosine_from_step_zero, "expected 0.4"),
        (too_long, "should have reached 0"),
        (straight, "with a warm-up of 10"),
        (negative, "negative"),
        (needs_warmup, "ZeroDivisionError"),
        (without_floor, "must end at the floor"),
        (floor_as_a_limit, "with a floor of 0.04"),
        (lambda *_: 0.04, "should have reached 0"),
        (lambda *case: 0.5 * right(*case), "The first of 10 steps"),
    ],
)
def test_each_mistake_of_a_schedule_has_its_words(mistake, words):
    found = labkit.check("04.1", mistake)
    assert found.state == "not yet" and words in str(found)


def loop(*, per_batch=False, never=False, first=False, epochs_more=0):
    """A training loop, correct or with one thing wrong."""

    def train(model, optimizer, scheduler, loader, epochs):
        for _ in range(epochs + epochs_more):
            if first:
                scheduler.step()
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
                if per_batch:
                    scheduler.step()
            if not (per_batch or never or first):
                scheduler.step()

    return train


def test_a_right_loop_is_right():
    assert "[0.1, 0.09, 0.081]" in str(labkit.check("04.2", loop()))


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (loop(per_batch=True), "The run shows scheduler stepped per batch"),
        (loop(never=True), "the learning rates: expected"),
        (loop(first=True), "began with [0.09, 0.081, 0.0729]"),
        (loop(epochs_more=1), "expected 96 optimizer steps, got 128"),
    ],
)
def test_each_mistake_of_a_loop_has_its_words(mistake, words):
    found = labkit.check("04.2", mistake)
    assert found.state == "not yet" and words in str(found), str(found)


def checkpoint(*parts, step="step", copied=copy.deepcopy):
    def make(model, optimizer, scheduler, now):
        states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        return {name: copied(states[name].state_dict()) for name in parts} | {step: now}

    return make


ALL = ("model", "optimizer", "scheduler")


def test_a_full_checkpoint_is_right():
    assert labkit.check("04.4", checkpoint(*ALL))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (checkpoint("model"), "has no 'optimizer' and no 'scheduler'"),
        (checkpoint("model", "optimizer"), "has no 'scheduler'"),
        (checkpoint(*ALL, step="epoch"), "has no 'step'"),
        (checkpoint(*ALL, copied=lambda state: state), "'model' changed with it"),
        (checkpoint(*ALL, copied=dict), "'model' changed with it"),
        (checkpoint(*ALL, copied=lambda state: {}), "cannot be loaded"),
        (lambda model, *_: model.state_dict(), "has no 'model'"),
        (lambda *_: 3, "Expected a dict"),
    ],
)
def test_each_gap_of_a_checkpoint_has_its_words(mistake, words):
    found = labkit.check("04.4", mistake)
    assert found.state == "not yet" and words in str(found), str(found)


def adam(*, corrected=True, sign=-1.0):
    def adam_changes(gradients, lr, beta1, beta2):
        mean = square = 0.0
        changes = []
        for t, gradient in enumerate(gradients, start=1):
            mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
            first, second = (1 - beta1**t, 1 - beta2**t) if corrected else (1, 1)
            changes.append(sign * lr * mean / first / ((square / second) ** 0.5 + 1e-8))
        return changes

    return adam_changes


def test_adam_by_hand():
    assert labkit.check("04.6", adam())
    assert "the wrong sign" in str(labkit.check("04.6", adam(sign=1.0)))
    assert "A first gradient of 0.001" in str(labkit.check("04.6", adam(corrected=False)))
    assert "expected 6 changes, got 1" in str(labkit.check("04.6", lambda g, lr, *_: [-lr * g[0] / abs(g[0])]))


def test_the_patient_keeps_its_rate_and_its_steps():
    for changes in ({"lr": 0.1}, {"steps": 800}):
        found = labkit.check("04.3", FAILURES["learning_rate_too_high_late"].sick.but(**changes))
        assert found.state == "not yet" and "has to keep" in str(found)


def test_the_evidence():
    assert labkit.check("04.5", lesson_04.SEALED)
    swapped = lesson_04.SEALED | {"B": "scheduler_stepped_per_batch", "E": "schedule_too_short"}
    found = str(labkit.check("04.5", swapped))
    assert "bends like a cosine" in found and "loses a tenth" in found and "Correct: A, C, D." in found


@pytest.mark.slow
def test_the_patients_have_what_they_are_said_to_have():
    for letter, run in lesson_04.patients().items():
        assert labkit.diagnose(run)[0].name == lesson_04.SEALED[letter]


def test_the_stored_runs_have_every_schedule_and_seed():
    table, recipes = lesson_04.stored(), lesson_04.recipes()
    assert list(table) == list(recipes)
    for words, rows in table.items():
        seeds = lesson_04.TRANSFORMER_SEEDS if words == "transformer" else lesson_04.SEEDS
        assert list(rows) == list(recipes[words])
        assert all(len(scores) == len(seeds) for scores in rows.values())


def test_a_stored_run_is_the_one_that_is_trained_now():
    words = "hot: 0.5 with momentum 0.9"
    recipe = lesson_04.recipes()[words]["cosine"]
    assert np.isclose(lesson_04.stored()[words]["cosine"][0], lesson_04.scores(recipe, (0,))[0], atol=0.03)


def test_the_lessons_own_schedules_stay_between_a_tenth_and_the_peak():
    recipe = labkit.Recipe(lr=0.5)
    for schedule in (lesson_04.cosine_to_tenth, lesson_04.triangular):
        rates = [schedule(step, recipe) for step in range(recipe.steps)]
        assert 0.05 <= min(rates) < 0.06 and 0.48 < max(rates) <= 0.5
