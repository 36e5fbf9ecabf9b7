"""Lesson 05's exercises: each usual mistake gets its own words, and right answers are right."""

import pytest
import torch

import labkit
from labkit.course.exercises import lesson_05
from labkit.failures.catalogue import FAILURES


def layers_of(net):
    pairs = ((name, list(module.parameters(recurse=False))) for name, module in net.named_modules())
    return {name: weights for name, weights in pairs if weights}


def together(weights):
    gradients = [weight.grad.flatten() for weight in weights if weight.grad is not None]
    return torch.cat(gradients).norm() if gradients else None


def right(net):
    return {name: together(weights) for name, weights in layers_of(net).items()}


def norms_added(net):
    added = {
        name: sum(w.grad.norm() for w in weights if w.grad is not None) for name, weights in layers_of(net).items()
    }
    return right(net) | {"0": added["0"]}


def of_weights(net):
    return right(net) | {"0": torch.cat([w.flatten() for w in net[0].parameters()]).norm()}


def zero_for_none(net):
    return {name: norm or 0.0 for name, norm in right(net).items()}


def none_for_zero(net):
    return {name: norm or None for name, norm in right(net).items()}


def none_for_any(net):
    pairs = layers_of(net).items()
    return {name: None if any(w.grad is None for w in weights) else together(weights) for name, weights in pairs}


def with_containers(net):
    return right(net) | {"2": 1.0}


def single_parameters(net):
    return {name: weight.grad for name, weight in net.named_parameters()}


def that_resets(net):
    norms = right(net)
    net.zero_grad()
    return norms


def test_a_right_logger_is_right():
    assert labkit.check("05.1", right)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (norms_added, "Their squares add up"),
        (of_weights, "Look at `.grad`"),
        (lambda net: right(net) | {"0": net[0].weight.grad.norm()}, "The bias has one too"),
        (lambda net: right(net) | {"0": right(net)["0"] ** 2}, "A norm is its square root"),
        (zero_for_none, "no gradient at all"),
        (none_for_zero, "not the same as none"),
        (none_for_any, "None is for layers without any gradient"),
        (with_containers, "recurse=False"),
        (single_parameters, "count together"),
        (lambda net: right(net) | {"1": None}, "is a ReLU"),
        (lambda net: right(net) | {"3": 0.0}, "Layer '3'"),
        (that_resets, "Only read them"),
        (lambda net: [1.0], "Expected a dict"),
    ],
)
def test_each_mistake_of_a_logger_has_its_words(mistake, words):
    found = labkit.check("05.1", mistake)
    assert found.state == "not yet" and words in str(found)


def sample():
    return torch.randn(100_000, generator=torch.Generator().manual_seed(1))


def test_a_right_gain_is_right():
    assert labkit.check("05.2", lambda f: 1 / f(sample()).square().mean().sqrt())


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda f: f(sample()).square().mean().sqrt(), "the factor that makes it 1 again"),
        (lambda f: 1 / f(sample()).square().mean(), "He's variance"),
        (lambda f: 1 / f(sample()).std(), "root of the mean square"),
        (lambda f: 2**0.5, "identity"),
        (lambda f: 1.0, "gain(torch.relu)"),
    ],
)
def test_each_mistake_of_a_gain_has_its_words(mistake, words):
    found = labkit.check("05.2", mistake)
    assert found.state == "not yet" and words in str(found)


def test_the_patient_keeps_its_sigmoids_and_its_depth():
    for changes in ({"activation": "tanh"}, {"depth": 3}):
        found = labkit.check("05.3", FAILURES["vanishing_gradients"].sick.but(**changes))
        assert found.state == "not yet" and "has to keep" in str(found)


def test_the_evidence():
    right = lesson_05.SEALED | {"learns least": "the first layers"}
    assert labkit.check("05.4", right)
    swapped = right | {"A": right["C"], "C": right["A"]}
    assert "share of clipped steps" in str(labkit.check("05.4", swapped))
    assert "powers of ten apart" in str(labkit.check("05.4", right | {"learns least": "all alike"}))


@pytest.mark.slow
def test_the_patients_have_what_they_are_said_to_have():
    for letter, run in lesson_05.patients().items():
        assert labkit.diagnose(run)[0].name == lesson_05.SEALED[letter]
