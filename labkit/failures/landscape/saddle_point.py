"""Weights a hundred million times too small: training starts at a saddle point and must escape it first."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import flat_start
from labkit.recording.run import Run
from labkit.recording.summaries import matrix_layers
from labkit.training.recipe import Recipe

# Steps without progress at the start. Healthy runs need at most 10, with momentum 61; here 171 to 174, on CIFAR-10
# 93.
LONG = 75  # and never below 2: growth needs two points
# The first layer's gradient at the end of the flat stretch over its first. A plateau: 2 to 8; this saddle point: 1e5.
GROWTH = 1e3
STEADY = 0.95  # correlation of its logarithm with the step: an exponential is a straight line there (here 0.99)

healthy = Recipe(width=64, activation="tanh", init="xavier", lr=0.05, steps=200)
sick = healthy.but(init="normal", init_scale=1e-8)


def signature(run: Run) -> Evidence | None:
    flat = flat_start(run)
    norms, names = matrix_layers(run, "grad_norm")
    norms = norms[:flat, 0]
    if flat < max(LONG, 2) or not (np.isfinite(norms) & (norms > 0)).all():
        return None
    growth = float(np.median(norms[-5:]) / np.median(norms[:5]))
    with np.errstate(all="ignore"):  # the correlation of a constant gradient is undefined
        steady = np.corrcoef(np.arange(flat), np.log(norms))[0, 1]
    if growth < GROWTH or not steady > STEADY:
        return None
    return Evidence(
        seen=f"the loss stays at {run['loss'][0]:.2f} for {flat} steps, while the gradient of {names[0]} grows "
        f"steadily by a factor of {growth:.1g}, doubling every {flat * np.log(2) / np.log(growth):.0f} steps",
        usual="a loss that falls within 10 steps, and gradients that change by less than a factor of 10",
        onset=0,
        place=names[0],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Saddle point",
    cures={
        "Xavier init, which starts away from the saddle point": sick.but(init="xavier", init_scale=1.0),
        "Adam, which takes full-size steps even for tiny gradients": sick.but(optimizer="adam", lr=0.003),
        "momentum 0.9, which escapes in a third of the time": sick.but(momentum=0.9),
    },
    false_cures={
        "batches of 16, whose noise might escape it": sick.but(batch_size=16),
        "ReLU instead of tanh": sick.but(activation="relu"),
    },
    harm=0.3,
    symptom="The loss stays at chance level as if nothing worked, then falls within twenty steps for no clear reason.",
    mechanism="With all weights near zero, each layer's gradient is proportional to the other layer's weights, so "
    "neither can grow first. The curvature is negative, but the escape starts from almost nothing and only doubles "
    "every few steps.",
    formula=r"\nabla_{W_1} L \propto W_2, \quad \nabla_{W_2} L \propto W_1, \qquad W(t) \sim W(0) \, e^{|\lambda| "
    r"\eta t}",
    first_check="The first layer's gradient norm on a log axis: a straight line upwards means a saddle point, a "
    "flat one a plateau.",
    remedy="Start away from the saddle point, with an init that keeps the scale. Adam or momentum escape sooner; the "
    "noise of small batches does not help, because it shrinks with the weights there.",
    reference="Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear neural networks "
    "(2014)",
    looks="stops too high",
    shows="grad_norm",
    also_causes=("learning_rate_left_low",),
    knobs=(
        Knob("init_scale", (1e-8, 0.1), log=True),
        Knob("init", ("normal", "xavier", "default")),
        Knob("optimizer", ("sgd", "adam")),
        Knob("momentum", (0.0, 0.9)),
        Knob("lr", (0.01, 0.5), log=True),
        Knob("activation", ("tanh", "identity", "relu")),
    ),
)
