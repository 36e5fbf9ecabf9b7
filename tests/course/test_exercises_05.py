"""Lesson 05's exercises: each usual mistake gets its own words, and right answers are right."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

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


# --- the loop ---


def train_with(threshold=1.0, late=False, returned="before"):
    """A loop that clips to a threshold, in time or too late, and returns norms from before or after it."""

    def train(model, optimizer, loader):
        norms = []
        for _ in range(5):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if late:
                    optimizer.step()
                before = nn.utils.clip_grad_norm_(model.parameters(), threshold)
                after = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()
                norms.append(before if returned == "before" else after)
                if not late:
                    optimizer.step()
        return None if returned == "nothing" else norms

    return train


def test_a_loop_that_clips_in_time_is_right():
    found = labkit.check("05.4", train_with())
    assert found and "largest norm before clipping" in str(found)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (train_with(late=True), "The run shows"),
        (train_with(threshold=1e-4), "clipping too tight"),
        (train_with(returned="after"), "taken after clipping"),
        (train_with(returned="nothing"), "you returned None"),
    ],
)
def test_each_mistake_of_a_clipping_loop_has_its_words(mistake, words):
    found = labkit.check("05.4", mistake)
    assert found.state == "not yet" and words in str(found)


# --- the patient ---


def found_in(run, **changes):
    smallest = np.median(run["grad_norm"], axis=0)
    answer = {"failure": "vanishing_gradients", "place": run.layers[smallest.argmin()], "evidence": "grad_norm"}
    return labkit.check("05.5", answer | {"value": smallest.min()} | changes)


def test_the_patient_has_what_it_is_said_to_have_and_shows_it():
    run = lesson_05.patient()
    assert labkit.diagnose(run)[0].name == "vanishing_gradients"
    assert found_in(run)
    assert "Compare the first and the last" in str(found_in(run, failure="learning_rate_too_low"))
    assert "Where does it show first or most" in str(found_in(run, place="layer8"))
    assert "is not what grad_norm shows" in str(found_in(run, value=0.3))


# --- the hard one ---


def as_sigmoids(weights, biases, inputs=2.0, outputs=2.0):
    new_weights, new_biases = [], []
    for place, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        if place:
            weight, bias = inputs * weight, bias - weight.sum(1)
        scale = outputs if place < len(weights) - 1 else 1.0
        new_weights.append(scale * weight)
        new_biases.append(scale * bias)
    return new_weights, new_biases


def test_sigmoids_that_behave_like_tanh_are_right():
    assert labkit.check("05.6", as_sigmoids)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda weights, biases: as_sigmoids(weights, biases, outputs=1.0), "sigmoid layer 1"),
        (lambda weights, biases: as_sigmoids(weights, biases, inputs=1.0), "sigmoid layer 2"),
        (lambda weights, biases: (weights, biases), "sigmoid layer 1"),
        (lambda weights, biases: weights, "Expected two lists"),
    ],
)
def test_each_mistake_of_the_hard_one_has_its_words(mistake, words):
    found = labkit.check("05.6", mistake)
    assert found.state == "not yet" and words in str(found)
