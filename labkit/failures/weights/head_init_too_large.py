"""The last layer starts a hundred times too large, while all other layers have a healthy scale."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import first_weights, left_over, unlearned
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, hidden_sizes, matrix_layers
from labkit.training import models
from labkit.training.recipe import Recipe

FACTOR = 100.0
LARGE_INPUTS = 3.0  # standard deviation of the inputs; normalised ones have 1
LARGE_HIDDEN = 5.0  # that of the last hidden activation; healthy up to 1.2, with N(0, 1) in all layers 16 to 40
# Standard deviation of the outputs over that of the last hidden activation, in the first forward pass. Healthy nets:
# 0.1 to 2.7; N(0, 1) in all layers: 9 to 14; a head times 100: 45 to 89.
LARGE = 25.0
WRONG = 4.0  # first loss over ln(classes). Healthy 1 to 2.4; a head times 100: 12 to 19
SLOW = 0.2  # of chance level, at the end: healthy runs 0.01 to 0.1, a large head 0.33 to 0.45 (on CIFAR-10 12)
# The gain of the last layer (the size of a weight times the root of the number of inputs), and that over the gain of
# the middle one. Default, He and Xavier inits 0.3 to 2 and 0.4 to 2, a head times 100: 33 to 60 and 60 to 130.
GAIN, APART = 20.0, 10.0
LEFT = 0.2  # of the loss of a constant prediction: a head times 100 in small programs of other tasks 0.23 to 1

healthy = Recipe()


def mlp_with_large_head(recipe, data) -> torch.nn.Module:
    """The plain net with the weights of its last layer multiplied by 100."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        net.get_submodule(f"layer{recipe.depth}").weight.mul_(FACTOR)
    return net


sick = healthy.but(model=mlp_with_large_head)


def oversized(run: Run) -> Evidence | None:
    """For nets of any kind: is the last layer alone far too large before the first step?"""
    gains = first_weights(run, "gain")
    if len(gains) < 2:
        return None
    *_, (place, last) = gains.items()
    middle = float(np.median([*gains.values()][:-1]))
    if not (last > GAIN and last > APART * middle and left_over(run) > LEFT):
        return None
    return Evidence(
        seen=f"before the first step the weights of {place} make a signal {last:.2g} times larger, those of the other "
        f"layers {middle:.2g} times; {left_over(run):.2f} of the loss of a constant prediction is left",
        usual="0.5 to 1.5 times in every layer",
        onset=0,
        place=place,
    )


def signature(run: Run) -> Evidence | None:
    return oversized(run) or wrong_from_the_start(run)


def wrong_from_the_start(run: Run) -> Evidence | None:
    """Are outputs and the first loss far too large, and the hidden activations are not?"""
    inputs, hidden, outputs = hidden_sizes(run)
    first, chance = float(run["loss"][0]), chance_loss(run)
    if not len(hidden) or not inputs < LARGE_INPUTS or not 0 < hidden[-1] < LARGE_HIDDEN:
        return None
    ratio = outputs / hidden[-1]
    if not ratio > LARGE or not first > WRONG * chance or not unlearned(run, SLOW):
        return None
    return Evidence(
        seen=f"a first loss of {first:.3g}: the outputs have {ratio:.0f} times the standard deviation of the last "
        f"hidden layer, which is healthy ({hidden[-1]:.2g})",
        usual="0.1 to 2.7 times",
        onset=0,
        place=matrix_layers(run, "weight_norm")[1][-1],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Head init too large",
    cures={"the same init for the last layer as for the others": sick.but(model="mlp")},
    false_cures={
        "Adam: better, but still four points lower": sick.but(optimizer="adam", lr=0.003),
        "a learning rate ten times lower": sick.but(lr=0.01),
    },
    harm=0.2,
    symptom="The first loss is 12 to 19 times ln(classes), although inputs and hidden layers look healthy. "
    "The first updates wreck the hidden layers, and half of their units die.",
    mechanism="The gradient reaches the hidden layers through the head's weights, and is a hundred times too large "
    "there, while the head itself is too large to change.",
    formula=r"\frac{\partial L}{\partial h} = W_{\text{head}}^\top (p - y), \qquad \lVert W_{\text{head}} \rVert "
    r"\text{ a hundred times too large}",
    first_check="The standard deviation of the outputs over that of the last hidden layer, in the first forward pass.",
    remedy="Initialise a new head at the scale of the other layers or below: zeros are fine for the last layer alone.",
    reference="Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017), section 5.1",
    looks="stops too high",
    shows="activation_size",
    where=("layer{depth}",),
    knobs=(
        Knob("lr", (1e-4, 0.3), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("momentum", (0.0, 0.9)),
        Knob("depth", (2, 5)),
    ),
    also_causes=("learning_rate_too_high", "dead_relu", "vanishing_gradients"),
)
