"""Nine tenths of the first layer are off for good: the loss falls all the same, and nobody looks."""

import numpy as np
import torch

from labkit.training import models
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of a layer's units silent on the probe at every evaluation, the first included. Healthy nets begin with 0 to
# 4 % (6 layers of PyTorch's default init: 37 %), this one with 90 %.
DEAD = 0.75
ALL = 1.0  # a layer without a single living unit is another failure
LEARNED = 0.75  # of the first loss is left at most: here 8 % (CIFAR-10: 65 %); a net that is stuck has a graver failure
SHARE, BIAS = 0.9, -30.0


def mlp_with_dead_units(recipe, data) -> torch.nn.Module:
    """The plain net, but nine tenths of the first layer start so far below zero that no image reaches them."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        bias = net.get_submodule("layer1").bias
        bias[: round(SHARE * len(bias))] = BIAS
    return net


healthy = Recipe(depth=3, optimizer="adam", lr=0.003)
sick = healthy.but(model=mlp_with_dead_units)


def signature(run: Run) -> Evidence | None:
    least, losses = lasting_death(run), fixed_loss(run)
    chosen = np.flatnonzero((least > DEAD) & (least < ALL))
    if not len(chosen) or len(losses) < 2 or losses[-1] > LEARNED * losses[0]:
        return None
    place = chosen[np.argmax(least[chosen])]
    return Evidence(
        seen=f"{least[place]:.0%} of the units of {run.activations[place]} are silent on every probe image, from the "
        f"first evaluation to the last, while the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
        usual="0 to 4 % before training",
        onset=0,
        place=run.activations[place],
    )


def lasting_death(run: Run) -> np.ndarray:
    """The smallest dead share that each layer ever had; -1 where there are no units to count."""
    return np.where(np.isfinite(run["dead"]), run["dead"], -1.0).min(axis=0, initial=1.0)


failure = FailureMode(
    title="A layer that is mostly dead",
    healthy=healthy,
    sick=sick,
    cures={
        "batch normalisation before each ReLU": sick.but(normalisation="batch"),
        "PyTorch's own biases": sick.but(model=models.mlp),
    },
    false_cures={"a higher learning rate: 0.01, 90 % right": sick.but(lr=0.01)},
    signature=signature,
    harm=0.01,
    costs="Two to five points of accuracy, a training loss three times as high, and the work for nine units in ten: "
    "the net has paid for 128 features and uses 13.",
    symptom="Nothing to see in the curves: the loss falls from the start and the accuracy looks respectable. It is "
    "a few points below what the same net can do.",
    mechanism="The units that are left carry the task alone. A unit that is off for every image has no gradient, so "
    "training cannot bring the others back, and the loss does not say that they are missing.",
    first_check="Share of units that are zero on a whole probe set, per layer, before the first step.",
    remedy="Find what pushed the biases down: an init, a restored checkpoint, a step that was too long. Batch "
    "normalisation before the activation brings the units back at once.",
    reference="Lu et al., Dying ReLU and Initialization: Theory and Numerical Examples (2019)",
    looks="nothing",
    shows="dead",
    where=("{activation}1",),
    knobs=(
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("activation", ("relu", "leaky_relu", "gelu", "tanh")),
        Knob("width", (16, 512), log=True),
        Knob("lr", (1e-4, 0.03), log=True),
    ),
)
