"""Lesson 01: the usual mistakes are told what they are, and right answers are right."""

import math

import numpy as np
import pytest
import torch

import labkit
from labkit.course.exercises import lesson_01


def gradient_norms(net):
    squares = {}
    for name, weight in net.named_parameters():
        layer = name.rpartition(".")[0]
        squares[layer] = squares.get(layer, 0.0) + (0.0 if weight.grad is None else weight.grad.square().sum())
    return {layer: math.sqrt(each) for layer, each in squares.items()} | {"total": math.sqrt(sum(squares.values()))}


def adds_norms(net):
    """Norms added up where squares should be."""
    norms = {}
    for name, weight in net.named_parameters():
        layer = name.rpartition(".")[0]
        norms[layer] = norms.get(layer, 0.0) + (0.0 if weight.grad is None else weight.grad.norm().item())
    return norms | {"total": sum(norms.values())}


def adds_layers(net):
    right = gradient_norms(net)
    return right | {"total": right["body.0"] + right["head"]}


def weights_only(net):
    return gradient_norms(net) | {"body.0": net.body[0].weight.grad.norm()}


def drops_frozen_layers(net):
    return {name: norm for name, norm in gradient_norms(net).items() if norm}


def per_parameter(net):
    return {name: weight.grad.norm() for name, weight in net.named_parameters() if weight.grad is not None}


def crashes_on_frozen(net):
    return {name: weight.grad.norm() for name, weight in net.named_parameters()}


def tidies_up(net):
    right = gradient_norms(net)
    net.zero_grad()
    return right


RIGHT = {
    "01.1": math.log,
    "01.2": gradient_norms,
    "01.3": lambda losses, size: np.sqrt(losses.var() / size),
    "01.5": {"A": "none", "B": "update / weight", "C": "first / last layer", "D": "dead units"},
}
WRONG = [
    ("01.1", math.log2, "in bits"),
    ("01.1", math.log10, "log10"),
    ("01.1", lambda classes: 1 / classes, "probability"),
    ("01.1", lambda classes: math.log(1 / classes), "a loss is positive"),
    ("01.1", lambda classes: 2.302585, "2 classes"),
    ("01.1", lambda classes: torch.zeros(3), "one number"),
    ("01.2", adds_norms, "root of 9 + 16"),
    ("01.2", adds_layers, "Squares add up"),
    ("01.2", weights_only, "where is the bias"),
    ("01.2", per_parameter, "your keys"),
    ("01.2", drops_frozen_layers, "'stem' (frozen"),
    ("01.2", crashes_on_frozen, "NoneType"),
    ("01.2", tidies_up, "A logger must only read them"),
    ("01.2", lambda net: 13.0, "Expected a dict"),
    ("01.3", lambda losses, size: losses.var() / size, "its square root"),
    ("01.3", lambda losses, size: losses.std() / size, "the variance that is divided"),
    ("01.3", lambda losses, size: losses.std(), "less noisy"),
    ("01.3", lambda losses, size: 2 / np.sqrt(size), "measured over 5000 random batches"),
    ("01.3", lambda losses, size: losses.mean() / np.sqrt(size), "expected 0.4"),
    ("01.5", RIGHT["01.5"] | {"A": "dead units"}, "inside its range"),
    ("01.5", RIGHT["01.5"] | {"C": "update / weight"}, "What about the first layer"),
    ("01.5", RIGHT["01.5"] | {"D": "none"}, "one row is far outside"),
    ("01.5", RIGHT["01.5"] | {"B": ...}, "not answered yet"),
]


@pytest.mark.parametrize("id", RIGHT)
def test_a_right_answer_is_right(id):
    assert labkit.check(id, RIGHT[id]).state == "right"


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_a_usual_mistake_is_named(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words in str(found)


def test_the_cure_may_not_change_the_batch():
    sick = labkit.FAILURES["batch_too_small"].sick
    found = labkit.check("01.4", sick.but(batch_size=128))
    assert found.state == "not yet" and "has to keep" in str(found)


def test_the_sheets_keep_the_verdict_to_themselves(monkeypatch):
    monkeypatch.setattr(lesson_01, "STEPS", 5)
    sheets = lesson_01.sheets()
    assert list(sheets) == list(RIGHT["01.5"])
    for sheet in sheets.values():
        assert "update / weight" in sheet and "dead units" in sheet and "verdict" not in sheet
