"""Lesson 01: the usual mistakes are told what they are, and right answers are right."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_01
from labkit.training.loop import train


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


def small_batches(together, mean=True, clear=True):
    """A loop that updates after `together` batches, with or without its slips."""

    def train(model, optimizer, loader):
        for _ in range(3):
            for number, (x, y) in enumerate(loader, start=1):
                (cross_entropy(model(x), y) / (together if mean else 1)).backward()
                if number % together == 0:
                    optimizer.step()
                    if clear:
                        optimizer.zero_grad()

    return train


@pytest.mark.parametrize("together", [8, 16])
def test_small_batches_converge_with_averaged_gradients(together):
    assert labkit.check("01.4", small_batches(together))


@pytest.mark.parametrize(
    "slip", [{"together": 1}, {"together": 8, "mean": False}, {"together": 8, "clear": False}], ids=str
)
def test_other_loops_do_not_converge(slip):
    found = labkit.check("01.4", small_batches(**slip))
    assert found.state == "not yet" and "correct" in str(found)


def test_the_sealed_run_is_wrong_before_its_first_step():
    run = lesson_01.sealed()
    assert run["loss"][0] > 10 * math.log(10) and run["weight_norm"][0][1] > 50 * 2 and run["weight_norm"][0][0] < 10
    assert labkit.diagnose(run)[0].name == "head_init_too_large"
    for name, value in {"loss": run["loss"][0], "weight_norm": run["weight_norm"][0][1]}.items():
        right = {"failure": "head_init_too_large", "place": "layer2", "evidence": name, "value": value}
        assert labkit.check("01.6", right)
        assert "value: " in str(labkit.check("01.6", right | {"value": value / 10}))
    reflex = right | {"failure": "learning_rate_too_high"}
    assert "before any step" in str(labkit.check("01.6", reflex))


def spike_detector(window=30, limit=6.0, floor=0.02, median=True, once=True):
    middle = np.median if median else np.mean

    def spikes(losses):
        found, before, logs = [], False, np.log(losses)
        for step in range(window, len(logs)):
            past = logs[step - window : step]
            noise = 1.48 * middle(np.abs(past - middle(past)))
            now = logs[step] - middle(past) > limit * max(noise, floor)
            if now and not (once and before):
                found.append(step)
            before = now
        return found

    return spikes


def fixed_factor(factor):
    return lambda losses: [t for t in range(30, len(losses)) if losses[t] > factor * np.median(losses[t - 30 : t])]


def test_a_spike_detector_that_measures_the_noise_is_right():
    assert labkit.check("01.7", spike_detector())


@pytest.mark.parametrize(
    ("detector", "words"),
    [
        (fixed_factor(3), "batches of 16"),
        (fixed_factor(10), "twice the usual loss at step 200"),
        (spike_detector(once=False), "Report the step at which it begins"),
        (lambda losses: True, "Expected a list"),
    ],
)
def test_usual_mistakes_of_a_spike_detector_are_named(detector, words):
    found = labkit.check("01.7", detector)
    assert found.state == "not yet" and words in str(found)


def test_the_stored_remedies_are_those_of_the_recipes():
    found = lesson_01.remedies()
    assert list(found) == list(lesson_01.small_batch_recipes())
    assert all(len(each) == 5 for each in found.values())


def test_a_stored_accuracy_is_what_training_gives():
    again = train(lesson_01.small_batch_recipes()["healthy"], progress=False).accuracy
    assert abs(again - lesson_01.remedies()["healthy"][0]) < 0.015  # another processor may round differently


def test_one_of_the_two_nets_is_mostly_dead_and_both_learn():
    nets, runs = lesson_01.two_nets()
    shares = []
    for net in nets.values():
        seen = {}
        net.get_submodule("relu1").register_forward_hook(
            lambda layer, inputs, outputs, seen=seen: seen.update(y=outputs)
        )
        net(labkit.data.load("mnist", "val").x[:500])
        shares.append((seen["y"] == 0).all(dim=0).float().mean().item())
    assert max(shares) > 0.85 and min(shares) < 0.2
    assert all(run.accuracy > 0.85 for run in runs.values())


def test_the_sheets_keep_the_verdict_to_themselves(monkeypatch):
    monkeypatch.setattr(lesson_01, "STEPS", 5)
    sheets = lesson_01.sheets()
    assert list(sheets) == list(RIGHT["01.5"])
    for sheet in sheets.values():
        assert "update / weight" in sheet and "dead units" in sheet and "verdict" not in sheet
