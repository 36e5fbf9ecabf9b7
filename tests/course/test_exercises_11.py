"""Lesson 11: the usual mistakes are named, right answers pass."""

import copy

import numpy as np
import pytest
import torch

import labkit
from labkit.course.exercises.lesson_11 import SEALED, with_momentum


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
    assert labkit.check("11.1", answer), str(labkit.check("11.1", answer))


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
    found = labkit.check("11.1", answer)
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
    assert labkit.check("11.4", answer)


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
    found = labkit.check("11.4", answer)
    assert found.state == "not yet" and words in str(found)


def test_the_lowest_curvature_is_right():
    assert labkit.check("11.2", lowest), str(labkit.check("11.2", lowest))


def lowest(times, start, iterations=30, size_of=lambda v, product: product.norm(), value_of=None):
    vector = start / start.norm()
    for _ in range(iterations):
        product = times(vector)
        if product.norm() == 0:
            return 0.0
        size, vector = size_of(vector, product), product / product.norm()
    vector = start / start.norm()
    for _ in range(iterations):
        product = times(vector)
        found = value_of(vector, product, size) if value_of else vector @ product
        vector = product - size * vector
        vector = vector / vector.norm()
    return float(found)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (power, "Shift before you iterate"),
        (lambda *case: lowest(*case, value_of=lambda v, p, s: v @ (p - s * v)), "eigenvalue of the shifted matrix"),
        (lambda *case: lowest(*case, size_of=lambda v, p: v @ p), "expected -2"),
    ],
)
def test_a_lowest_curvature_that_is_not_names_the_mistake(answer, words):
    found = labkit.check("11.2", answer)
    assert found.state == "not yet" and words in str(found), str(found)


def plain(model, loader, passes=6, make=lambda weights: torch.optim.SGD(weights, lr=0.05)):
    optimizer = make(model.parameters())
    for _ in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def with_adam(model, loader):
    plain(model, loader, make=lambda weights: torch.optim.Adam(weights, lr=0.003))


def smaller_batches(model, loader):
    plain(model, torch.utils.data.DataLoader(loader.dataset, batch_size=32))


def for_longer(model, loader):
    plain(model, loader, passes=14, make=lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9))


def test_momentum_and_adam_escape_the_saddle():
    assert labkit.check("11.3", with_momentum), str(labkit.check("11.3", with_momentum))
    assert labkit.check("11.3", with_adam), str(labkit.check("11.3", with_adam))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain, "not yet"),
        (smaller_batches, "not yet"),
        (lambda model, loader: plain(model, loader, passes=14), "saddle point"),
        (for_longer, "Six passes"),
    ],
)
def test_a_loop_that_stays_or_takes_longer_is_not_right(answer, words):
    assert words in str(labkit.check("11.3", answer))


def sam(net, loss, x, y, rho, back=True, clear=True, sign=1, layerwise=False):
    weights = list(net.parameters())
    here = [weight.detach().clone() for weight in weights]
    net.zero_grad()
    loss(net(x), y).backward()
    slopes = [weight.grad.clone() for weight in weights]
    norm = torch.cat([slope.flatten() for slope in slopes]).norm()
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight.add_(sign * rho * slope / (slope.norm() if layerwise else norm))
    if clear:
        net.zero_grad()
    loss(net(x), y).backward()
    with torch.no_grad():
        for weight, before in zip(weights, here, strict=True):
            if back:
                weight.copy_(before)


def test_a_sharpness_aware_gradient_is_right():
    assert labkit.check("11.6", sam), str(labkit.check("11.6", sam))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda *case: sam(*case, back=False), "are not what they were"),
        (lambda *case: sam(*case, clear=False), "With rho = 0"),
        (lambda *case: sam(*case, sign=-1), "uphill"),
        (lambda *case: sam(*case, layerwise=True), "one over all weights"),
        (lambda net, loss, x, y, rho: loss(net(x), y).backward(), "at the old place"),
    ],
)
def test_a_sharpness_aware_gradient_that_is_not_names_the_mistake(answer, words):
    found = labkit.check("11.6", answer)
    assert found.state == "not yet" and words in str(found), str(found)


def test_the_evidence():
    assert labkit.check("11.5", SEALED)
    found = labkit.check("11.5", SEALED | {"B": "vanishing_gradients"})
    assert found.state == "not yet" and "Correct: A, C, D." in str(found) and "within 60 steps" in str(found)
