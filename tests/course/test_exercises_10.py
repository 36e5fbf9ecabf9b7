"""Lesson 10: the usual mistakes are named, right answers pass."""

import copy

import numpy as np
import pytest
import torch

import labkit
from labkit.course.exercises.lesson_10 import SEALED


def power(times, start, iterations=30, value=lambda v, product: float(v @ product), unit=True, safe=True):
    vector, found = start / start.norm(), 0.0
    for _ in range(iterations):
        product = times(vector)
        found, length = value(vector, product), product.norm()
        if safe and length == 0:
            return 0.0
        vector = product / length if unit else product
    return found


def with_two_products(times, start, iterations):
    for _ in range(iterations):
        if times(start).norm() == 0:
            return 0.0
        product = times(start)
        start = product / product.norm()
    return np.float32(start @ times(start))


@pytest.mark.parametrize("answer", [power, with_two_products])
def test_power_iteration_is_right(answer):
    assert labkit.check("10.1", answer), str(labkit.check("10.1", answer))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: power(*case, value=lambda v, product: float(product.norm())), "has no sign"),
        (lambda *case: power(*case, unit=False), "normalise v to length 1"),
        (lambda *case: power(*case, safe=False, value=lambda v, p: float(v @ p / (v @ v))), "you divide by its norm"),
        (lambda times, start, iterations: power(times, start, 200), "Expected 7 iterations"),
        (lambda times, start, iterations: start, "Expected one number as the curvature"),
    ],
)
def test_a_power_iteration_that_is_not_names_the_mistake(answer, words):
    found = labkit.check("10.1", answer)
    assert found.state == "not yet" and words in str(found)


def between(net, other, loss, x, y, points=11, prepared=lambda net: copy.deepcopy(net).eval()):
    walker, ends, losses = prepared(net), (copy.deepcopy(net), copy.deepcopy(other)), []
    with torch.no_grad():
        for share in torch.linspace(0, 1, points).tolist():
            for weight, a, b in zip(walker.parameters(), *(each.parameters() for each in ends), strict=True):
                weight.copy_(torch.lerp(a, b, share))
            losses.append(loss(walker(x), y).item())
    return losses


def mixed_losses(net, other, loss, x, y, points):
    first, last = (loss(copy.deepcopy(each).eval()(x), y).item() for each in (net, other))
    return torch.linspace(first, last, points).tolist()


def that_drifts(net, other, loss, x, y, points):
    walker, losses = copy.deepcopy(net).eval(), []
    with torch.no_grad():
        for share in torch.linspace(0, 1, points).tolist():
            for weight, b in zip(walker.parameters(), other.parameters(), strict=True):
                weight.copy_(torch.lerp(weight, b, share))
            losses.append(loss(walker(x), y).item())
    return losses


@pytest.mark.parametrize("answer", [between, lambda *case: torch.tensor(between(*case))])
def test_a_slice_between_two_nets_is_right(answer):
    assert labkit.check("10.3", answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: between(*case, prepared=lambda net: net.eval()), "The weights of `net` were changed"),
        (lambda *case: between(*case, prepared=copy.deepcopy), "dropout is on"),
        (lambda net, *case: between(net.eval(), *case), "are left in other modes"),
        (lambda net, other, *case: between(other, net, *case), "wrong order"),
        (lambda *case: between(*case)[:-1], "Expected 5 points"),
        (mixed_losses, "You interpolated the two losses"),
        (that_drifts, "start from `net` again"),
    ],
)
def test_a_slice_that_is_not_names_the_mistake(answer, words):
    found = labkit.check("10.3", answer)
    assert found.state == "not yet" and words in str(found)


def test_what_the_patient_keeps_may_not_be_changed():
    sick = labkit.FAILURES["saddle_point"].sick
    assert "has to keep" in str(labkit.check("10.2", sick.but(init="xavier", init_scale=1.0)))


def test_the_evidence():
    assert labkit.check("10.4", SEALED)
    found = labkit.check("10.4", SEALED | {"B": "vanishing_gradients"})
    assert found.state == "not yet" and "Correct: A, C, D." in str(found) and "within 60 steps" in str(found)
