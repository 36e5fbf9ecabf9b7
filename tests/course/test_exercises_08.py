"""Lesson 08: the usual mistakes are told what they are, and right answers are right."""

import pytest
import torch

import labkit
from labkit.course.exercises import lesson_08


def early_stop(losses, patience):
    best, kept = float("inf"), 0
    for place, loss in enumerate(losses):
        if loss < best:
            best, kept = loss, place
        elif place - kept >= patience:
            return kept, place
    return kept, len(losses) - 1


def keeps_the_last(losses, patience):
    stopped = early_stop(losses, patience)[1]
    return stopped, stopped


def compares_with_the_one_before(losses, patience):
    waited = 0
    for place in range(1, len(losses)):
        waited = 0 if losses[place] < losses[place - 1] else waited + 1
        if waited == patience:
            return min(range(place), key=losses.__getitem__), place
    return min(range(len(losses)), key=losses.__getitem__), len(losses) - 1


def peeks(losses, patience):
    best = min(range(len(losses)), key=losses.__getitem__)
    return best, min(best + patience, len(losses) - 1)


def never_resets(losses, patience):
    best, kept, waited = float("inf"), 0, 0
    for place, loss in enumerate(losses):
        if loss < best:
            best, kept = loss, place
        else:
            waited += 1
            if waited == patience:
                return kept, place
    return kept, len(losses) - 1


def takes_a_tie(losses, patience):
    best, kept = float("inf"), 0
    for place, loss in enumerate(losses):
        if loss <= best:
            best, kept = loss, place
        elif place - kept >= patience:
            return kept, place
    return kept, len(losses) - 1


def trusts_a_nan(losses, patience):
    best, kept = float("inf"), 0
    for place, loss in enumerate(losses):
        if loss >= best:
            if place - kept >= patience:
                return kept, place
        else:
            best, kept = loss, place
    return kept, len(losses) - 1


@pytest.mark.parametrize(
    "mistake, words",
    [
        (keeps_the_last, "the net you keep is the one with the lowest loss"),
        (compares_with_the_one_before, "Compare with the best"),
        (peeks, "it is never computed"),
        (never_resets, "resets the count"),
        (takes_a_tie, "not better than the best"),
        (trusts_a_nan, "A NaN is never better"),
        (lambda losses, patience: len(losses) - 1, "Expected two numbers"),
    ],
)
def test_mistakes_in_early_stopping_are_named(mistake, words):
    found = labkit.check("08.1", mistake)
    assert found.state == "not yet" and words in str(found)


def test_right_early_stopping_is_right():
    assert labkit.check("08.1", early_stop)
    assert labkit.check("08.1", lambda losses, patience: torch.tensor(early_stop(losses, patience)))


def calibration(*, weigh=True, size=True, last=True, binned=True, floor=True):
    """A calibration error with one slip, or none."""

    def calibration_error(confidence, right, bins=10):
        number = confidence * (bins if binned else 1)
        number = number.long() if floor else number.round().long()
        number = number.clamp(max=bins - 1) if last else number
        found, shares = [], []
        for each in range(bins):
            inside = number == each
            if inside.any():
                off = confidence[inside].mean() - right[inside].float().mean()
                found.append(off.abs() if size else off)
                shares.append(inside.float().mean())
        if not weigh:
            return float(torch.stack(found).mean()) if found else 0.0
        return abs(float(sum(off * share for off, share in zip(found, shares, strict=True))))

    return calibration_error


@pytest.mark.parametrize(
    "slip, words",
    [
        ({"last": False}, "does the last bin include 1.0?"),
        ({"size": False}, "they must not cancel"),
        ({"weigh": False}, "Weight each bin"),
        ({"floor": False}, "from 0.6 to 0.7"),
        ({"binned": False}, "the difference of the two means"),
    ],
)
def test_mistakes_in_the_calibration_error_are_named(slip, words):
    found = labkit.check("08.2", calibration(**slip))
    assert found.state == "not yet" and words in " ".join(str(found).split())


def test_a_right_calibration_error_is_right():
    assert labkit.check("08.2", calibration())


@pytest.mark.slow
def test_the_patients_have_what_they_are_said_to_have():
    for letter, run in lesson_08.patients().items():
        assert labkit.diagnose(run)[0].name == lesson_08.SEALED[letter], letter


def test_a_cure_may_buy_neither_time_nor_data():
    sick = labkit.FAILURES["underfit"].sick
    assert "You changed steps" in str(labkit.check("08.3", sick.but(steps=800)))
    assert "nothing in it was changed" in str(labkit.check("08.3", sick))


def test_the_key_of_the_patients_is_right_and_every_other_answer_is_answered():
    assert labkit.check("08.4", dict(lesson_08.SEALED))
    for letter, right in lesson_08.SEALED.items():
        for other in lesson_08.SEALED.values():
            if other != right:
                found = labkit.check("08.4", lesson_08.SEALED | {letter: other})
                assert found.state == "not yet" and f"{letter}: " in str(found) and "not a choice" not in str(found)
