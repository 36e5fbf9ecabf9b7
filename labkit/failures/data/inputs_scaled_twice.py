"""Pixels divided by 255 twice: images differ by less than the biases do, and the net hardly sees them."""

import torch

from labkit.failures.data import blank_inputs
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, input_deviation, typical
from labkit.training import models
from labkit.training.recipe import Recipe

# Standard deviation of a training batch and its largest value. Normalised inputs: 1 and 3; pixels from 0 to 1: 0.25 to
# 0.33 and 1; divided by 255 once more: 0.0009 to 0.004 and 0.004 to 0.011. Rare ones in one-hot inputs have a small
# deviation too, but a largest value of 1. Measured on digits and photographs.
NARROW, SMALL = 0.02, 0.05
# Share of the first loss left at the end. Scaled twice: SGD 1.00, Adam at 0.001 0.4 to 0.9. Adam at 0.01 makes up
# for it on digits (0.14): then the small inputs do no harm. Batch norm brings them back to 1 in train mode; its running
# variance does not, next to its epsilon: small programs end at 1 to 1,400.
LEFT = 0.5

healthy = Recipe(inputs="unit")


def scale_again(net: torch.nn.Module, inputs: tuple) -> tuple:
    """Before each forward pass: the data loader has done this already."""
    return tuple(x / 255 for x in inputs)


def mlp_that_scales_again(recipe, data) -> torch.nn.Module:
    """The plain net with a preprocessing of its own."""
    net = models.mlp(recipe, data)
    net.register_forward_pre_hook(scale_again)
    return net


sick = healthy.but(model=mlp_that_scales_again)


def signature(run: Run) -> Evidence | None:
    width, largest, losses = input_deviation(run), typical(run["input_max"][:, None])[0], fixed_loss(run)
    if not (blank_inputs.FLAT <= width < NARROW and largest < SMALL):
        return None
    if len(losses) < 2 or losses[-1] < LEFT * losses[0]:
        return None
    return Evidence(
        seen=f"inputs with a standard deviation of {width:.2g} and a largest value of {largest:.2g}; the loss went "
        f"from {losses[0]:.3g} to {losses[-1]:.3g}",
        usual="a standard deviation of 0.3 to 1",
        onset=0,
        place="inputs",
        confidence=0.93,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Inputs scaled twice",
    cures={
        "pixels divided by 255 once": sick.but(model=models.mlp),
        "batch normalisation after the first layer": sick.but(normalisation="batch"),
    },
    false_cures={
        "ten times the learning rate: still at chance level": sick.but(lr=1.0),
        "Adam: 59 to 62 %": sick.but(optimizer="adam", lr=0.001),
        "twice as many steps: still at chance level": sick.but(steps=800),
    },
    harm=0.7,
    symptom="The loss stays at chance level with SGD, and falls late and slowly with Adam. Gradients are finite, and "
    "no warning says that the images are almost blank.",
    mechanism="The gradient of a weight is proportional to its input, so the first layer learns hundreds of times "
    "more slowly. Its biases are much larger than what the images add, so every image gives nearly the same output.",
    formula=r"\frac{\partial L}{\partial W_1} = \delta \, x^\top, \qquad x \in \left[0, \tfrac{1}{255}\right]",
    first_check="Mean, standard deviation and largest value of one training batch, as the net receives it: a largest "
    "value of 0.004 is 1/255.",
    remedy="Scale in one place: ToTensor() already divides by 255. Then normalise to mean 0 and standard deviation 1. "
    "A higher learning rate does not help, because it also scales the biases.",
    reference="LeCun, Bottou, Orr and Mueller, Efficient BackProp (1998), section 4.3",
    looks="never moves",
    shows="activation_std",
    knobs=(
        Knob("lr", (0.01, 10.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("steps", (200, 1600)),
    ),
    also_causes=("dead_relu", "dead_relu_by_learning_rate", "plateau", "labels_shuffled", "vanishing_gradients"),
    cifar10={"schedule": "cosine"},  # at a constant 0.1 the healthy net ends at only 32 to 36 %
)
