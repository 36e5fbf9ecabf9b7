"""No activation between the layers: together they are one linear layer, whatever the depth."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss
from labkit.training.recipe import Recipe

LAYERS = 2  # weight matrices; a net with one is linear on purpose: logistic or linear regression
# Distance from an affine function at every evaluation, in standard deviations of the outputs. Without activations
# rounding leaves 2e-7 to 5e-7 (perceptrons and convnets, MNIST and CIFAR-10); healthy nets show 0.05 to 0.8
# (those, recurrent nets and transformers too).
AFFINE = 1e-4
# Loss left at the end, as a share of the first. A linear net that fits its data needs no activation and leaves less;
# without one, 0.10 to 0.21 are left on MNIST and 0.71 to 0.76 on CIFAR-10.
LEFT = 0.03

healthy = Recipe(model="convnet", depth=3, width=8, optimizer="adam", lr=2e-3, batch_size=64, steps=300, augment="crop")
sick = healthy.but(activation="identity")


def activates(run: Run) -> bool:
    """Does an activation module work between the layers? One that gives the outputs of the net does not count."""
    deviations = run["activation_std"]
    hidden, outputs = deviations[:, 1:-1], deviations[:, -1:]
    used = np.isfinite(hidden).any(axis=0)  # NaN: never called
    return bool((used & (hidden != outputs).any(axis=0)).any())


def signature(run: Run) -> Evidence | None:
    bent, losses = run["nonlinearity"], fixed_loss(run)
    bent = bent[np.isfinite(bent)]
    layers = run.facts.get("matrices", ())
    if len(layers) < LAYERS or not len(bent) or not bent.max() < AFFINE:
        return None
    if not len(losses) or not losses[-1] > LEFT * losses[0] or activates(run):
        return None
    return Evidence(
        seen=f"midway between two samples the net is within {bent.max():.1g} standard deviations of the mean of both "
        f"outputs: {len(layers)} layers with a weight matrix, and all of them together are one linear layer",
        usual="0.05 to 0.8 standard deviations",
        onset=0,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="No activation between layers",
    cures={
        "ReLU after every hidden layer": sick.but(activation="relu"),
        "leaky ReLU after every hidden layer": sick.but(activation="leaky_relu"),
    },
    false_cures={
        "five layers: 85 % accuracy, and 86 % with three": sick.but(depth=5),
        "four times as many channels: 82 %": sick.but(width=32),
        "twice as many steps: 86 %, and the twin has 96 % after half of them": sick.but(steps=600),
        "batch normalisation, which is linear in eval mode: 86 %": sick.but(normalisation="batch"),
    },
    harm=0.07,
    symptom="The loss falls smoothly and plateaus too high, for training and validation alike. More layers, more units "
    "and more steps change nothing.",
    mechanism="A linear function of a linear function is linear: W2 (W1 x) = (W2 W1) x. The net can only separate "
    "classes by planes, as logistic regression does.",
    formula=r"W_2 (W_1 x) = (W_2 W_1) \, x",
    first_check="The outputs midway between two inputs: if they are the mean of both outputs, up to rounding, the net "
    "is linear.",
    remedy="Put an activation after every hidden layer: nn.ReLU() in the Sequential, or F.relu in forward. An "
    "activation that is defined in __init__ and never called does not help.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 6.1",
    looks="stops too high",
    shows="nonlinearity",
    knobs=(
        Knob("activation", ("identity", "relu", "leaky_relu", "tanh")),
        Knob("depth", (2, 5)),
        Knob("width", (4, 32), log=True),
        Knob("normalisation", ("none", "batch")),
    ),
)
