"""Lesson 02: the usual mistakes are told what they are, and right answers are right."""

import numpy as np
import pytest

import labkit
from labkit.course.exercises import lesson_02
from labkit.failures.signs import looks


def shaped(
    *,
    finite=True,
    both=True,
    jump=10,
    mean=True,
    left=0.9,
    lowest=True,
    times=1.3,
    order=("stuck", "overfit"),
):
    """A classifier of curves with one slip, or none."""

    def shape(train, val):
        if finite and not (np.isfinite(train).all() and (not both or np.isfinite(val).all())):
            return "diverged"
        if (train > jump * train[0]).any():
            return "diverged"
        end = train[-20:].mean() if mean else train[-1]
        base = val.min() if lowest else val[0]
        rules = {"stuck": end > left * train[0], "overfit": val[-1] > times * base}
        return next((name for name in order if rules[name]), "falls")

    return shape


@pytest.mark.parametrize(
    "slip, words",
    [
        ({"finite": False}, "Every comparison with a NaN is False"),
        ({"both": False}, "the validation loss is infinite"),
        ({"jump": np.inf}, "Look at all values"),
        ({"jump": 100}, "13 times the first loss"),
        ({"jump": 5}, "8 times the first loss"),
        ({"left": 0.97}, "0.94 of its first"),
        ({"left": 0.7}, "0.8 of its first"),
        ({"times": 2.0}, "1.4 times the lowest"),
        ({"mean": False}, "mean of the last 20"),
        ({"lowest": False}, "Compare with the lowest"),
        ({"times": 1.0}, "A rise by a tenth is noise"),
        ({"order": ("overfit", "stuck")}, "The first in the list counts"),
    ],
)
def test_mistakes_in_the_shape_are_named(slip, words):
    found = labkit.check("02.1", shaped(**slip))
    assert found.state == "not yet" and words in str(found)


def test_a_name_that_is_not_in_the_list_is_told_the_list():
    assert "Expected one of diverged, stuck, overfit, falls" in str(labkit.check("02.1", lambda train, val: "healthy"))


def test_a_right_shape_is_right():
    assert labkit.check("02.1", shaped())


@pytest.mark.parametrize("id, key", [("02.2", lesson_02.SEPARATES), ("02.3", lesson_02.SEALED)])
def test_the_keys_are_right_and_every_other_answer_is_answered(id, key):
    assert labkit.check(id, dict(key))
    for letter, right in key.items():
        for other in key.values():
            if other != right:
                found = labkit.check(id, key | {letter: other})
                assert found.state == "not yet" and f"{letter}: " in str(found) and "not a choice" not in str(found)


def test_a_cure_may_not_take_the_bad_batch_away_or_stop_before_it():
    sick = labkit.FAILURES["corrupt_batch"].sick
    assert "You changed batches" in str(labkit.check("02.4", sick.but(batches="shuffled")))
    assert "You changed steps" in str(labkit.check("02.4", sick.but(steps=200)))


def test_the_blow_is_survived_by_a_limit_and_not_by_a_lower_rate():
    sick = labkit.FAILURES["corrupt_batch"].sick
    assert labkit.check("02.4", sick.but(clip=1.0))
    assert labkit.check("02.4", sick.but(lr=0.03)).state == "not yet"


@pytest.mark.slow
def test_the_sealed_curves_show_what_is_said_of_them():
    ward = lesson_02.patients()
    train = {letter: run["loss"] for letter, run in ward.items()}
    assert all(np.isfinite(losses).all() for losses in train.values())
    assert train["C"].max() > 1e3 * train["C"][0] and train["C"][-20:].mean() > 0.8 * train["C"][0]
    assert train["D"][:200].max() < 2 * train["D"][0] < train["D"].max() / 10
    assert train["E"][-1] < 1e-3 and ward["E"]["val_loss"][-1] > 2 * ward["E"]["val_loss"].min()
    assert looks(ward["B"]) == "stops too high" and abs(ward["B"].gap[-1]) < 0.16
    for letter, run in ward.items():
        assert labkit.diagnose(run)[0].name == lesson_02.SEALED[letter], letter
