"""Pixels from 0 to 255: the first layer's gradient is a hundred times too large for the learning rate."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, has_tokens, input_deviation, unexplained
from labkit.training.recipe import Recipe

# Standard deviation of a training batch. Normalised inputs: 1; pixels from 0 to 1: 0.3; raw pixels: 60 to 80.
WIDE = 10.0
# One update as large as half of the weights it changes, within ten steps. Raw inputs that train well (Adam 1e-3,
# SGD 1e-3, batch norm) stay below 0.1; with SGD 0.1 the first updates are 100 times the weights.
VIOLENT, WINDOW = 0.5, 10
# Small programs of other tasks (tables, series, text as numbers; Adam and SGD), over the loss of a constant prediction.
# The first loss: healthy 0.9 to 1.9, inputs of standard deviation 20 to 1,000: 1.1 to 4,000. The last: healthy 0.03 to
# 0.45, such inputs 0.06 (no harm) to 9.
SURPRISED, LEFT, MUCH = 3.0, 0.25, 0.5
RISE = 3.0  # the loss over its first value; where raw inputs do no harm it only falls; SGD 0.1: 1e4 and more

healthy = Recipe(steps=300)
sick = healthy.but(inputs="raw")


def slowed(run: Run, width: float) -> Evidence | None:
    """Wide inputs that do not make the first steps violent, as with Adam, and cost most of what could be learned."""
    if "constant_loss" not in run.facts:
        return None
    first, left = float(run["loss"][0] / chance_loss(run)), float(unexplained(run)[-1])
    if not (left > LEFT and (first > SURPRISED or left > MUCH)):
        return None
    return Evidence(
        seen=f"inputs with a standard deviation of {width:.3g}; the first loss is {first:.3g} times that of a constant "
        f"prediction, and {left:.2g} times is left at the end",
        usual="inputs with mean 0 and standard deviation 1, a first loss of 0.9 to 2 times, less than 0.45 at the end",
        onset=0,
        place="inputs",
        confidence=0.85,
    )


def signature(run: Run) -> Evidence | None:
    width = input_deviation(run)
    ratio = run["update_ratio"].max(axis=1)[:WINDOW]
    violent = np.flatnonzero(ratio > VIOLENT)
    if run.facts.get("batch_norms"):  # handles any scale: if such a net diverges, it has another cause
        return None
    if has_tokens(run):
        return None
    if not width > WIDE or not np.isfinite(run["loss"][0]):
        return None
    if not len(violent):
        return slowed(run, width)
    step, losses = int(violent[0]), run["loss"]
    peak = np.max(losses[step:], initial=losses[0], where=np.isfinite(losses[step:]))
    if peak < RISE * losses[0]:
        return slowed(run, width)
    return Evidence(
        seen=f"inputs with a standard deviation of {width:.3g}; step {step} changed a layer by {ratio[step]:.2g} times "
        f"its own size, and the loss went from {losses[0]:.3g} to {peak:.3g}",
        usual="inputs with mean 0 and standard deviation 1, updates of 0.001 to 0.2 of a layer",
        onset=step,
        place="inputs",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Inputs not normalised",
    cures={
        "normalised inputs": sick.but(inputs="normalised"),
        "batch normalisation after the first layer": sick.but(normalisation="batch"),
    },
    false_cures={
        "a tenth of the learning rate: 62 %": sick.but(lr=0.01),
        "a hundredth of the learning rate: it trains, but only to 89 %": sick.but(lr=0.001),
    },
    harm=0.8,
    symptom="The first loss is ten times chance level, the next ones are in the millions, and then the loss stays at "
    "chance level, because every unit is dead.",
    mechanism="The gradient of a weight is proportional to its input, so pixels of 255 make steps a hundred times too "
    "large. All pixels are positive too, so all weights of a unit are pushed in the same direction at once.",
    formula=r"\frac{\partial L}{\partial W_1} = \delta \, x^\top, \qquad x \in [0, 255]",
    first_check="Mean and standard deviation of one training batch, as the net receives it: close to 0 and 1.",
    remedy="Subtract the mean and divide by the standard deviation of the training set, in training and in "
    "validation. Batch normalisation after the first layer also works. A lower learning rate only makes training slow.",
    reference="LeCun, Bottou, Orr and Mueller, Efficient BackProp (1998), section 4.3",
    looks="jumps",
    shows="activation_std",
    knobs=(
        Knob("inputs", ("raw", "unit", "normalised")),
        Knob("lr", (1e-4, 0.1), log=True),
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("optimizer", ("sgd", "adam")),
        Knob("clip", (None, 1.0)),
    ),
    also_causes=(
        "learning_rate_too_high",
        "dead_relu",
        "dead_relu_by_learning_rate",
    ),
)
