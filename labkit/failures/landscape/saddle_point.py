"""Weights drawn a hundred million times too small: training starts on a saddle and must first fall off it."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import flat_start, matrix_layers
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Steps without progress at the start. Healthy runs leave within 10, momentum after 61; here 171 to 174, on photographs
# after 93.
LONG = 75  # and never below 2: one step has no slope
# The first layer's gradient at the end of the flat stretch over its first. A plateau: 2 to 8; this saddle: 1e5.
GROWTH = 1e3
STEADY = 0.95  # correlation of its logarithm with the step: an exponential is a straight line there (here 0.99)

healthy = Recipe(width=64, activation="tanh", init="xavier", momentum=0.0, lr=0.05, steps=200)
sick = healthy.but(init="normal", init_scale=1e-8)


def signature(run: Run) -> Evidence | None:
    flat = flat_start(run)
    norms, names = matrix_layers(run, "grad_norm")
    norms = norms[:flat, 0]
    if flat < max(LONG, 2) or not (np.isfinite(norms) & (norms > 0)).all():
        return None
    growth = float(np.median(norms[-5:]) / np.median(norms[:5]))
    with np.errstate(all="ignore"):  # a gradient that never changes has no correlation with anything
        steady = np.corrcoef(np.arange(flat), np.log(norms))[0, 1]
    if growth < GROWTH or not steady > STEADY:
        return None
    return Evidence(
        seen=f"the loss stays at {run['loss'][0]:.2f} for {flat} steps, while the gradient of {names[0]} grows "
        f"steadily by a factor of {growth:.1g}, doubling every {flat * np.log(2) / np.log(growth):.0f} steps",
        usual="a loss that falls within 10 steps, and gradients that change by less than 10 times",
        onset=0,
        place=names[0],
    )


failure = FailureMode(
    title="Saddle point",
    healthy=healthy,
    sick=sick,
    cures={
        "Xavier init, which starts on the slope": sick.but(init="xavier", init_scale=1.0),
        "Adam, which makes full steps of the faintest gradient": sick.but(optimizer="adam", lr=0.003),
        "momentum 0.9, which is off it in a third of the time": sick.but(momentum=0.9),
    },
    false_cures={
        "batches of 16, whose noise should shake it loose": sick.but(batch_size=16),
        "a ReLU in place of tanh": sick.but(activation="relu"),
    },
    signature=signature,
    harm=0.3,
    symptom="The loss lies at chance level as if nothing worked, then falls within twenty steps for no visible reason.",
    mechanism="With all weights near zero the two layers wait for each other: each one's gradient is proportional to "
    "the other's weights. The loss curves down, but the way out starts from almost nothing and only doubles "
    "every few steps.",
    first_check="The first layer's gradient norm on a log axis: a straight line upwards says saddle, a level one "
    "plateau.",
    remedy="Start away from the saddle, with an init that keeps the scale. Adam or momentum leave it sooner; the "
    "noise of small batches does not, because at the saddle it shrinks with the weights.",
    reference="Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear neural networks "
    "(2014)",
    looks="stops too high",
    shows="grad_norm",
    knobs=(
        Knob("init_scale", (1e-8, 0.1), log=True),
        Knob("init", ("normal", "xavier", "default")),
        Knob("optimizer", ("sgd", "adam")),
        Knob("momentum", (0.0, 0.9)),
        Knob("lr", (0.01, 0.5), log=True),
        Knob("activation", ("tanh", "identity", "relu")),
    ),
)
