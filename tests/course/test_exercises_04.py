"""Lesson 04's exercises: each usual mistake gets its own words, and right answers are right."""

from math import cos, pi

import pytest

import labkit
from labkit.course.exercises import lesson_04
from labkit.failures.catalogue import FAILURES


def right(step, steps, warmup, peak):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (1 + cos(pi * min(1.0, (step - warmup) / (steps - warmup)))) / 2


def from_zero(step, steps, warmup, peak):
    return peak * step / warmup if step < warmup else right(step, steps, warmup, peak)


def unclamped(step, steps, warmup, peak):
    if step < warmup:
        return right(step, steps, warmup, peak)
    return peak * (1 + cos(pi * (step - warmup) / (steps - warmup))) / 2


def cosine_from_step_zero(step, steps, warmup, peak):
    return right(step, steps, warmup, peak) if step < warmup else right(step, steps, 0, peak)


def too_long(step, steps, warmup, peak):
    return right(step, steps + warmup, warmup, peak)


def straight(step, steps, warmup, peak):
    return right(step, steps, warmup, peak) if step < warmup else peak * max(0.0, (steps - step) / (steps - warmup))


def negative(step, steps, warmup, peak):
    return right(step, steps, warmup, peak) if step < steps else -0.1


def needs_warmup(step, steps, warmup, peak):
    up = peak * (step + 1) / warmup
    return min(up, right(step, steps, warmup, peak)) if step < warmup else right(step, steps, warmup, peak)


def test_a_right_schedule_is_right():
    assert labkit.check("04.1", right)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (from_zero, "the first batch is wasted"),
        (unclamped, "rises again"),
        (cosine_from_step_zero, "expected 0.4"),
        (too_long, "should have reached 0"),
        (straight, "with a warmup of 10"),
        (negative, "negative"),
        (needs_warmup, "ZeroDivisionError"),
        (lambda *_: 0.04, "should have reached 0"),
        (lambda *case: 0.5 * right(*case), "The first of 10 steps"),
    ],
)
def test_each_mistake_of_a_schedule_has_its_words(mistake, words):
    found = labkit.check("04.1", mistake)
    assert found.state == "not yet" and words in str(found)


def loop(per_batch=False, first=False, late=False, extra=0):
    """A training loop with one thing wrong."""

    def rates_used(optimizer, scheduler, epochs, batches):
        rates = []
        for _ in range(epochs):
            if first:
                scheduler.step()
            for _ in range(batches + extra):
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                if per_batch:
                    scheduler.step()
            if not per_batch and not first:
                scheduler.step()
            if late:
                rates[-1] = scheduler.get_last_lr()[0]
        return rates

    return rates_used


def test_a_right_loop_is_right():
    assert labkit.check("04.2", loop())


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (loop(per_batch=True), "indented one level too far"),
        (loop(first=True), "Call it after the epoch"),
        (loop(late=True), "the learning rates that were used"),
        (loop(extra=1), "expected 12 optimizer steps, got 15"),
        (lambda optimizer, scheduler, epochs, batches: [0.1] * epochs * batches, "optimizer steps, got 0"),
    ],
)
def test_each_mistake_of_a_loop_has_its_words(mistake, words):
    found = labkit.check("04.2", mistake)
    assert found.state == "not yet" and words in str(found)


def test_the_patient_keeps_its_rate_and_its_steps():
    for changes in ({"lr": 0.1}, {"steps": 800}):
        found = labkit.check("04.3", FAILURES["learning_rate_too_high_late"].sick.but(**changes))
        assert found.state == "not yet" and "has to keep" in str(found)


def test_the_evidence():
    assert labkit.check("04.4", lesson_04.SEALED)
    swapped = lesson_04.SEALED | {"B": "scheduler_stepped_per_batch", "E": "schedule_too_short"}
    found = str(labkit.check("04.4", swapped))
    assert "bends like a cosine" in found and "loses a tenth" in found and "Correct: A, C, D." in found


@pytest.mark.slow
def test_the_patients_have_what_they_are_said_to_have():
    for letter, run in lesson_04.patients().items():
        assert labkit.diagnose(run)[0].name == lesson_04.SEALED[letter]
