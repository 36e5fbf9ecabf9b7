"""Biases of -5: every ReLU is off for every image. A unit that is off gets no gradient, so it stays off."""

import numpy as np
import torch

from labkit.failures.mode import Branch, Evidence, FailureMode, Knob
from labkit.failures.signs import stuck
from labkit.recording.run import Run
from labkit.recording.summaries import worst_dead
from labkit.training import models
from labkit.training.recipe import Recipe

# Share of a layer's units that are zero on the whole probe. Healthy: 2 to 17 %, up to 39 % with Adam at 1e-2, and 62 %
# in small programs with frozen or convolutional layers. Here, and in programs of other tasks with biases far below 0:
# 100 %. Behind a layer whose outputs are the same for every sample about half of the units, up to 94 %.
DEAD = 0.8
BIAS = -5.0


def mlp_with_low_biases(recipe, data) -> torch.nn.Module:
    """The plain net, with hidden biases far below zero: as after a bad init or a step that was too large."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        for number in range(1, recipe.depth):
            net.get_submodule(f"layer{number}").bias.fill_(BIAS)
    return net


healthy = Recipe(depth=3, optimizer="adam", lr=0.003)
sick = healthy.but(model=mlp_with_low_biases)


def signature(run: Run) -> Evidence | None:
    dead, place = worst_dead(run)
    if dead[-1] <= DEAD or not stuck(run, share=0.25):
        return None
    alive = np.flatnonzero(dead <= DEAD)
    first = int(alive[-1]) + 1 if len(alive) else 0  # from here on it stays dead
    return Evidence(
        seen=f"{dead[-1]:.0%} of the units of {place} are zero on every probe image",
        usual="2 to 20 %",
        onset=int(run["val_step"][first]),
        place=place,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Dead ReLUs",
    cures={
        "batch normalisation before each ReLU": sick.but(normalisation="batch"),
        "leaky ReLU: a small gradient for negative inputs": sick.but(activation="leaky_relu"),
    },
    false_cures={"GELU, whose derivative at -5 is almost 0": sick.but(activation="gelu")},
    harm=0.8,
    symptom="The loss stays at chance level, and the gradients of the hidden layers are exactly zero.",
    mechanism="A ReLU passes no gradient where its input is negative, so a unit that is off for every image never "
    "gets an update.",
    formula=r"\frac{\partial L}{\partial w} = \frac{\partial L}{\partial h} \, [w x + b > 0] \, x = 0 \quad "
    r"\text{if } w x + b < 0 \text{ for every } x",
    first_check="Share of units that are zero on a whole probe set, per layer. Zeros on a single batch do not mean "
    "dead.",
    remedy="Batch normalisation or leaky ReLU revives the units. Find the cause too: biases, init, or one step with "
    "far too high a learning rate.",
    reference="Lu et al., Dying ReLU and Initialization: Theory and Numerical Examples (2019)",
    looks="never moves",
    shows="dead",
    knobs=(
        Knob("activation", ("relu", "leaky_relu", "gelu", "tanh")),
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("depth", (2, 6)),
        Knob("lr", (1e-4, 0.3), log=True),
    ),
    kills_units=True,
    symptom_tree=(Branch("never moves", "Dead units?", "over 0.8 of a layer", place=3),),
)
