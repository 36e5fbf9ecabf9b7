"""Lesson 08: the usual mistakes are told what they are, and right answers are right."""

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

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
    found = labkit.check("08.3", calibration(**slip))
    assert found.state == "not yet" and words in " ".join(str(found).split())


def test_a_right_calibration_error_is_right():
    assert labkit.check("08.3", calibration())


@pytest.mark.slow
def test_the_patients_have_what_they_are_said_to_have():
    for letter, run in lesson_08.patients().items():
        assert labkit.diagnose(run)[0].name == lesson_08.SEALED[letter], letter


def test_a_cure_may_buy_neither_time_nor_data():
    sick = labkit.FAILURES["underfit"].sick
    assert "You changed steps" in str(labkit.check("08.5", sick.but(steps=800)))
    assert "nothing in it was changed" in str(labkit.check("08.5", sick))


def test_the_key_of_the_patients_is_right_and_every_other_answer_is_answered():
    assert labkit.check("08.6", dict(lesson_08.SEALED))
    for letter, right in lesson_08.SEALED.items():
        for other in lesson_08.SEALED.values():
            if other != right:
                found = labkit.check("08.6", lesson_08.SEALED | {letter: other})
                assert found.state == "not yet" and f"{letter}: " in str(found) and "not a choice" not in str(found)


# --- 08.2: the loop ---


def train_best(model, optimizer, loader, validate, epochs=40, patience=5, *, copied=copy.deepcopy, restore=True):
    """Early stopping in a loop, with one slip, or none."""
    best, kept, waited = math.inf, {}, 0
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        loss = validate(model)
        if loss < best:
            best, kept, waited = loss, copied(model.state_dict()), 0
        else:
            waited += 1
            if waited == patience:
                break
    if restore:
        model.load_state_dict(kept)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"copied": lambda state: state}, "not a copy of them"),
        ({"restore": False}, "that of the last epoch"),
        ({"patience": 2}, "patience 5 stops five later"),
        ({"epochs": 3}, "a correct loop reaches"),
    ],
)
def test_mistakes_in_keeping_the_best_net_are_named(options, words):
    def mine(model, optimizer, loader, validate):
        train_best(model, optimizer, loader, validate, **options)

    found = labkit.check("08.2", mine)
    assert found.state == "not yet" and words in str(found), found


def test_a_loop_that_keeps_its_best_net_is_right():
    assert labkit.check("08.2", train_best)


# --- 08.4: the temperature ---


def fit_temperature(logits, labels):
    log_s = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_s], max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        found = cross_entropy(log_s.exp() * logits, labels)
        found.backward()
        return found

    optimizer.step(loss)
    return math.exp(-log_s.item())


def by_grid(logits, labels):
    return min((1 + k / 100 for k in range(400)), key=lambda T: cross_entropy(logits / T, labels).item())


def by_calibration_error(logits, labels):
    def error(T):
        confidence, predicted = (logits / T).softmax(1).max(1)
        return calibration()(confidence, predicted == labels)

    return min((0.1 * 1.02**k for k in range(200)), key=error)


def in_place(logits, labels):
    T = fit_temperature(logits, labels)
    logits /= T
    return T


@pytest.mark.parametrize(
    "mistake, words",
    [
        (by_grid, "end of a grid"),
        (lambda logits, labels: 1 / fit_temperature(logits, labels), "Did you return s = 1/T?"),
        (by_calibration_error, "the lowest cross-entropy"),
        (in_place, "changed the caller's logits"),
        (lambda logits, labels: "two", "Expected one number"),
    ],
)
def test_mistakes_in_the_temperature_are_named(mistake, words):
    found = labkit.check("08.4", mistake)
    assert found.state == "not yet" and words in str(found), found


def test_a_right_temperature_is_right_however_it_is_found():
    assert labkit.check("08.4", fit_temperature)
    assert labkit.check("08.4", lesson_08.best_temperature)


# --- 08.7: the experiment ---


def lacks_data(train_x, train_y, val_x, val_y):
    """A quarter of the training images held out, and a nearest-neighbour classifier instead of a net."""
    part = len(train_y) // 4

    def accuracy(x, y):
        nearest = torch.cdist(x.flatten(1), train_x[part:].flatten(1)).argmin(1)
        return (train_y[part:][nearest] == y).float().mean()

    return bool(accuracy(train_x[:part], train_y[:part]) - accuracy(val_x, val_y) < 0.25)


@pytest.mark.parametrize(
    "mistake, words",
    [
        (lambda *team: True, "More data of the same kind would not help"),
        (lambda *team: False, "nothing else is wrong"),
        (lambda *team: "A", "Expected True or False"),
    ],
)
def test_a_guess_is_no_experiment(mistake, words):
    found = labkit.check("08.7", mistake)
    assert found.state == "not yet" and words in str(found), found


def test_an_experiment_of_another_kind_is_right_too():
    assert labkit.check("08.7", lacks_data)
