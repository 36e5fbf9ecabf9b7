"""The activation of the hidden layers on the outputs too: a ReLU cuts off every negative logit, and its gradient."""

import math

import numpy as np
from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, late_loss, unexplained
from labkit.training import models
from labkit.training.recipe import Recipe

# Measured on MNIST and CIFAR-10 and, through `watch`, on 2, 3, 20 and 50 classes and on one output for yes or no.
# Share of the outputs in the lowest 1/32 of their range, at every evaluation, for outputs of which the lowest is 0.
# ReLU: 0.2 to 0.99. Of logits the lowest is below 0.
ZEROS = 0.1
# For outputs within 0 and 1 or -1 and 1: the share in the lowest and the highest 1/32 of their range, at the end.
# Sigmoid and tanh: 0.18 to 1 after 200 steps; logits: 0.001 to 0.09.
ENDS = 0.12
TOP = 0.3  # of these the highest 1/32, times the classes. Sigmoid and tanh: 0.4 to 2.3; a softmax over the batch: 0.05.
WIDE = 0.9  # how far up they reach at the end. Sigmoid and tanh: 0.98 to 1.
SAME = (
    1e-5  # the outputs are those of the last activation: relative difference. Elsewhere the means differ by 0.2 to 4.
)
# The range of logits that the first loss needs, over the range on the probe: 0.03 to 0.4 for cross-entropy, since first
# outputs are no better than chance. Squared error after a ReLU or sigmoid needs 1.4 to 18.
SLACK = 0.8
FLOOR = 0.7  # the lowest loss over the lowest that such logits can give: 1 and more; probabilities with their loss: 0
LEFT = (
    0.2  # one output from 0 to 1: loss minus entropy of the outputs. Sigmoid twice: 0.42; a fitting loss: below 0.04.
)
SAMPLES = 64  # in a histogram
ROUNDING = 1e-5  # of a mean of 1 / classes, as after a softmax
# Targets that are numbers: how far they reach beyond the ends of the outputs' range, over their standard deviation, and
# the loss left over that of a constant prediction. ReLU and sigmoid behind three small programs (regression, series,
# autoencoder): 1.2 to 3 and 0.37 to 0.8; healthy programs: 0 to 0.4 below or above what their outputs reach, with
# outputs that are nowhere cut off, and 0.03 to 0.2.
REACH, MISSED = 0.8, 0.25

healthy = Recipe(depth=4, optimizer="adam", lr=0.003, steps=300)


def mlp_with_activation_on_outputs(recipe, data) -> nn.Module:
    """The plain net with the hidden layers' activation after its last layer too."""
    net = models.mlp(recipe, data)
    net.append(models.ACTIVATIONS[recipe.activation]())
    return net


sick = healthy.but(model=mlp_with_activation_on_outputs)


def is_last_activation(run: Run) -> bool:
    """Are the outputs those of the last activation, at every step and every evaluation?"""
    if len(run.activations) < 3:
        return False
    pairs = (run[name][:, -2:] for name in ("activation_mean", "activation_std", "histogram_range"))
    with np.errstate(all="ignore"):
        return all(bool((np.abs(pair[:, 0] - pair[:, 1]) <= SAME * np.abs(pair[:, 1])).all()) for pair in pairs)


def limits(classes: int, single: bool, low: float, high: float) -> tuple[float, float]:
    """The lowest and highest cross-entropy of logits between these two; `single`: of one logit for yes or no."""
    reach = min(max(abs(low), abs(high)) if single else high - low, 700)
    return math.log1p((classes - 1) * math.exp(-reach)), math.log1p((classes - 1) * math.exp(reach))


def signature(run: Run) -> Evidence | None:
    counts, (low, high) = run["histogram"][:, -1], run["histogram_range"][:, -1].T
    if (low == 1).all() and (high == 1).all():
        return found(f"every output is exactly 1 at each of {len(low)} evaluations, as after a softmax over one unit")
    if (low == 0).all() and (high == 0).all() and is_last_activation(run) and run["activation_std"][0, -1] > 0:
        return found(f"every output is exactly 0 at each of {len(low)} evaluations: those of {run.activations[-2]}")
    if run.facts.get("task") == "numbers":
        return cut_off(run, counts / counts.sum(axis=1, keepdims=True), low, high)
    return squashed_logits(run, counts, low, high)


def found(seen: str) -> Evidence:
    return Evidence(seen, "logits of either sign, -10 to 10", onset=0, place="outputs", confidence=0.95)


def cut_off(run: Run, shares: np.ndarray, low: np.ndarray, high: np.ndarray) -> Evidence | None:
    """For targets that are numbers: do the outputs end where an activation ends, and the targets go on?"""
    tests, left = tested(run), float(unexplained(run)[-1])
    beyond = REACH * tests.get("target_std", np.nan)
    below = low.min() - tests.get("target_min", np.nan) > beyond
    above = tests.get("target_max", np.nan) - high.max() > beyond
    if not left > MISSED or not np.isfinite([*low, *high]).all() or not (below or above):
        return None
    rectified = low.min() == low.max() == 0 and (shares[:, 0] > ZEROS).all() and below
    bounded = low.min() >= -1 and high.max() <= 1 and (below or low.min() < 0) and is_last_activation(run)
    if not (rectified or bounded):
        return None
    return Evidence(
        seen=f"all outputs lie between {low.min():.3g} and {high.max():.3g}, the targets between "
        f"{tests['target_min']:.3g} and {tests['target_max']:.3g}; {left:.2f} of the loss of a constant prediction is "
        "left",
        usual="outputs that reach as far as the targets",
        onset=0,
        place="outputs",
        confidence=0.95,
    )


def squashed_logits(run: Run, counts: np.ndarray, low: np.ndarray, high: np.ndarray) -> Evidence | None:
    """For classes, and for questions of yes or no: is an activation between the logits and the loss?"""
    questions = run.facts.get("task") in ("yes or no", "labels")
    classes, losses = 2 if questions else run.facts.get("classes") or 0, run["loss"]
    single = questions or (classes == 2 and counts[0].sum() <= SAMPLES)
    if classes < 2 or not (single or is_one_output_per_class(counts[0].sum(), classes)):
        return None
    if not np.isfinite([*losses, *low, *high]).all() or not high.max() > low.max():
        return None
    if (np.abs(run["activation_mean"][:, -1] * classes - 1) < ROUNDING).all():  # a softmax: another failure
        return None
    seen = marks_of_an_activation(run, counts / counts.sum(axis=1, keepdims=True), low, high, classes)
    first = limits(classes, single, SLACK * low[0], SLACK * high[0])
    if not seen or not any(first[0] <= loss <= first[1] for loss in (losses[0], fixed_loss(run)[0])):
        return None  # the first loss is not the cross-entropy of these outputs
    if losses.min() < limits(classes, single, low.min(), high.max())[0] * FLOOR:
        return None
    in_range = low.min() >= 0 and high.max() <= 1
    if single and in_range and not late_loss(run) - entropy(counts[-1], low[-1], high[-1]) > LEFT:
        return None  # probabilities, and a loss that is meant for them
    return found(f"{seen}; the loss ends at {late_loss(run):.2f}")


def is_one_output_per_class(counted: float, classes: int) -> bool:
    """From the number of values in a histogram; a small probe has fewer samples than it takes."""
    return counted == SAMPLES * classes or (counted < SAMPLES * classes and counted % classes == 0)


def marks_of_an_activation(run: Run, shares: np.ndarray, low: np.ndarray, high: np.ndarray, classes: int) -> str:
    """What shows that the outputs are those of an activation, or nothing."""
    ends, top = shares[-1, 0] + shares[-1, -1], shares[-1, -1] * classes
    if low.min() == low.max() == 0 and (shares[:, 0] > ZEROS).all():
        return f"{shares[-1, 0]:.0%} of the outputs are 0 and none is ever below, as after a ReLU"
    if low.min() < -1 or high.max() > 1:
        return ""
    if high[-1] > WIDE and ends > ENDS and top > TOP:
        least = 0 if low.min() >= 0 else -1
        return f"every output lies between {least} and 1, {ends:.0%} of them at these two ends"
    if is_last_activation(run):
        return f"the outputs are those of {run.activations[-2]}, between {low.min():.2g} and {high.max():.2g}"
    return ""


def entropy(counts: np.ndarray, low: float, high: float) -> float:
    """Mean entropy of single probabilities, from their histogram: the loss they would have if they are calibrated."""
    places = low + (np.arange(len(counts)) + 0.5) / len(counts) * (high - low)
    places = np.clip(places, 1e-12, 1 - 1e-12)  # outputs that are all 0
    return float(-(places * np.log(places) + (1 - places) * np.log1p(-places)) @ counts / counts.sum())


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Activation on the outputs",
    cures={"no activation after the last layer": sick.but(model="mlp")},
    false_cures={
        "a third of the learning rate: 37 to 77 %": sick.but(lr=0.001),
        "three times as many steps: 37 to 66 %": sick.but(steps=900),
        "He init: 57 to 86 %": sick.but(init="he"),
    },
    harm=0.1,
    symptom="The loss falls and then stops too high, and another seed ends somewhere else: 37 to 74 % here. Some "
    "classes are never predicted.",
    mechanism="A ReLU makes every negative logit 0 and passes back no gradient there. A class whose logit is negative "
    "for all images gets no update any more, as a dead unit does, and cannot be predicted again. Tanh and sigmoid keep "
    "logits within 1 of 0, so cross-entropy cannot fall below 0.80 or 1.46 for ten classes; the accuracy suffers less, "
    "by 0 to 7 points on MNIST.",
    formula=r"\frac{\partial L}{\partial z_k} = (p_k - y_k) \, [z_k > 0]",
    first_check="The smallest and the largest output on a few images: logits have any sign and size. A minimum of "
    "exactly 0, or a maximum of exactly 1, is an activation.",
    remedy="End the net with a linear layer and pass its outputs to a loss for logits. Where outputs are built in a "
    "loop over layers, leave out the last activation. Sigmoid fits BCELoss and ReLU a regression of positive targets, "
    "but neither fits cross_entropy or BCEWithLogitsLoss.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 6.2.2",
    looks="stops too high",
    shows="activation_mean",
    knobs=(
        Knob("activation", ("relu", "tanh", "sigmoid", "leaky_relu")),
        Knob("depth", (2, 6)),
        Knob("lr", (3e-4, 0.03), log=True),
        Knob("optimizer", ("adam", "sgd")),
        Knob("steps", (100, 1000)),
    ),
    also_causes=("dead_relu", "partly_dead_layer", "plateau", "vanishing_gradients"),
    where=("outputs",),
)
