"""Lesson 06's newer exercises: a loop that revives units, a free diagnosis, and silence by the numbers."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_06
from labkit.tools.dead_units import dead_units


def train_with(revive):
    """A plain loop of four epochs that calls `revive(model, dead)` after the first."""

    def train(model, optimizer, loader):
        for epoch in range(4):
            for x, y in loader:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
            if epoch == 0:
                with torch.no_grad():
                    revive(model, dead_units(model, loader).dead["2"])

    return train


def afresh(model, dead):
    model[1].weight[dead] = nn.Linear(784, len(dead)).weight
    model[1].bias[dead] = 0.0
    model[3].weight[:, dead] = 0.0


def test_a_loop_that_revives_is_right():
    found = labkit.check("06.4", train_with(afresh))
    assert found and "units are alive" in str(found)


def test_a_loop_that_does_not_revive_is_told_what_it_shows():
    found = labkit.check("06.4", train_with(lambda model, dead: None))
    assert found.state == "not yet" and "The run shows mostly dead layer" in str(found)


def test_a_loop_that_revives_too_few_is_told_how_many_are_left():
    found = labkit.check("06.4", train_with(lambda model, dead: afresh(model, dead[:50])))
    left = re.search(r"(\d+) of 128 units of the first layer are still dead", str(found))
    assert found.state == "not yet" and left and 50 <= int(left[1]) <= 70  # some of those revived died again


# --- the patient ---


def answer(**changes):
    found = {"failure": "dead_branch", "place": "block3.block.relu3", "evidence": "dead", "value": 1.0}
    return labkit.check("06.5", found | changes)


def test_the_patient_has_what_it_is_said_to_have_and_both_traces_show_it():
    run = lesson_06.patient()
    assert labkit.diagnose(run)[0].name == "dead_branch"
    assert run["probe_loss"][-1] < 0.5 * run["probe_loss"][0]
    assert answer(value=run["dead"][-1, run.activations.index("block3.block.relu3")])
    gradient = run["grad_norm"][-1, run.layers.index("block3.block.layer3")]
    assert answer(place="block3.block.layer3", evidence="grad_norm", value=gradient)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"failure": "partly_dead_layer"}, "whole layers get exactly 0"),
        ({"failure": "vanishing_gradients"}, "small is not 0"),
        ({"place": "layer1"}, "Where does it show first or most"),
        ({"evidence": "loss"}, "does not tell this failure"),
        ({"value": 0.9}, "is not what dead shows"),
    ],
)
def test_each_mistake_of_the_diagnosis_has_its_words(changes, words):
    found = answer(**changes)
    assert found.state == "not yet" and words in str(found)


# --- the hard one ---


def silent_share(outputs, n):
    """The product of (q - i) / (N - i): choose(q, n) / choose(N, n), one image at a time."""
    quiet, chance = (outputs == 0).sum(0).double(), torch.ones(outputs.shape[1], dtype=torch.float64)
    for taken in range(n):
        chance = chance * (quiet - taken).clamp(min=0) / (len(outputs) - taken)
    return chance.mean()


def test_the_exact_share_is_right():
    assert labkit.check("06.6", silent_share)


def test_the_share_with_replacement_is_named():
    found = labkit.check("06.6", lambda outputs, n: ((outputs == 0).double().mean(0) ** n).mean())
    assert found.state == "not yet" and "draws the same image twice" in str(found)
