"""Lesson 02: the usual mistakes are told what they are, and right answers are right."""

import re

import numpy as np
import pytest
from helpers import ROOT
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import labkit
from labkit.course import notebooks
from labkit.course.exercises import lesson_02
from labkit.course.poster.content import TREE


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


def test_the_experiments_are_right_and_every_other_one_is_answered():
    key = lesson_02.TELLS
    assert labkit.check("02.2", dict(key))
    for pair, right in key.items():
        for other in key.values():
            if other != right:
                found = labkit.check("02.2", key | {pair: other})
                assert found.state == "not yet" and f"{pair}: " in str(found) and "not a choice" not in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("pair", lesson_02.PAIRS)
def test_an_experiment_changes_one_failure_of_its_pair_and_not_the_other(pair):
    """Validation loss after the change over that before: 0.1 to 0.7 where it helps, exactly 1 where it is the same."""
    found = lesson_02.before_and_after(pair, lesson_02.TELLS[pair])
    ratios = sorted(after["val_loss"][-1] / before["val_loss"][-1] for before, after in found.values())
    assert ratios[0] < 0.8 and abs(ratios[1] - 1) < 0.02


RIGHT = {
    "02.3": {"failure": "corrupt_sample", "evidence": "input_outliers", "value": 1 / 128},
    "02.4": {"failure": "schedule_too_short", "evidence": "lr", "value": 0.0},
}
REFLEXES = [
    ("02.3", {"failure": "corrupt_batch"}, "how many samples"),
    ("02.3", {"failure": "learning_rate_too_high"}, "What came in when it jumped"),
    ("02.3", {"value": 1.0}, "value: "),
    ("02.3", {"evidence": "grad_norm"}, "does not tell this failure"),
    ("02.4", {"failure": "underfit"}, "Does the net still move"),
    ("02.4", {"failure": "learning_rate_too_low"}, "ordinary one in the first steps"),
    ("02.4", {"value": 0.1}, "value: "),
]


@pytest.mark.parametrize("id", RIGHT)
def test_a_right_diagnosis_is_right(id):
    assert labkit.check(id, RIGHT[id])


@pytest.mark.parametrize(("id", "slip", "words"), REFLEXES)
def test_a_reflex_is_answered(id, slip, words):
    found = labkit.check(id, RIGHT[id] | slip)
    assert found.state == "not yet" and words in str(found)


def test_the_sealed_runs_show_what_is_asked_for():
    x, y = (lesson_02.sealed(letter) for letter in "XY")
    assert abs(x["input_outliers"].max() - 1 / 128) < 1e-4 and x["loss"].max() > 10 * x["loss"][0]
    assert y["lr"][0] > 0.01 and y["lr"][-1] == 0
    assert labkit.diagnose(x)[0].name == "corrupt_sample" and labkit.diagnose(y)[0].name == "schedule_too_short"


def looped(limit=None, skip=False, factor=1.0):
    def train(model, optimizer, loader):
        for group in optimizer.param_groups:
            group["lr"] *= factor
        for _ in range(3):
            for x, y in loader:
                loss = cross_entropy(model(x), y)
                if skip and loss > 20:
                    continue
                optimizer.zero_grad()
                loss.backward()
                if limit:
                    clip_grad_norm_(model.parameters(), limit)
                optimizer.step()

    return train


@pytest.mark.parametrize("cure", [{"limit": 1.0}, {"limit": 3.0}, {"skip": True}], ids=str)
def test_a_corrupt_batch_is_survived_by_a_limit_or_by_skipping_it(cure):
    assert labkit.check("02.5", looped(**cure))


@pytest.mark.parametrize("no_cure", [{}, {"factor": 0.3}, {"limit": 1000.0}], ids=str)
def test_a_corrupt_batch_is_not_survived_by_a_lower_learning_rate(no_cure):
    found = labkit.check("02.5", looped(**no_cure))
    assert found.state == "not yet" and "correct" in str(found)


def rhythm(losses, limit=0.3, trend=False, last=False):
    y = np.log(losses) if trend else np.diff(np.log(losses))
    y = y - y.mean()
    r = [1.0] + [(y[:-k] * y[k:]).sum() / (y * y).sum() for k in range(1, len(y) // 3)]
    peaks = [k for k in range(3, len(r) - 1) if r[k] > limit and r[k] == max(r[k - 1 : k + 2])]
    return peaks[-1 if last else 0] if peaks else None


def test_a_rhythm_is_found_where_there_is_one():
    assert labkit.check("02.6", rhythm)


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (lambda losses: 8, "Take the first peak"),
        (lambda losses: rhythm(losses, limit=2.0), "expected about 13, got None"),
        (lambda losses: rhythm(losses, last=True), "Take the first peak"),
        (lambda losses: rhythm(losses, limit=0.01), "expected"),
    ],
)
def test_other_rhythms_are_told_what_they_missed(mine, words):
    found = labkit.check("02.6", mine)
    assert found.state == "not yet" and words in str(found)


def test_the_symptom_tree_of_the_lesson_has_every_cause_of_the_posters_and_only_real_failures():
    text = "\n".join(
        cell.source
        for cell in notebooks.read(notebooks.solutions(ROOT, ["02"])[0]).cells
        if cell.cell_type == "markdown"
    )
    table = text.split("## The symptom tree")[1].split("## Turn a knob")[0]
    named = set(re.findall(r"`(\w+)`", table)) - {"code"}
    assert named <= set(labkit.FAILURES)
    assert {cause for tests in TREE.values() for readings in tests.values() for _, cause in readings} <= named
