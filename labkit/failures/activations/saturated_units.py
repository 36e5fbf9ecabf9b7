"""Weights of size 1 before tanh: nearly every unit is at +1 or -1, where its derivative is almost zero."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.run import Run
from labkit.recording.summaries import typical
from labkit.training.recipe import Recipe

# Share of a layer's activations beyond 0.97 of the range, at the first step and as the median of the run. Healthy
# tanh nets start at 14 % and end at 69 % (sigmoid: 1 and 39 %); drawn from N(0, 1): 94 and 97 % (sigmoid: 90 and 91 %).
SATURATED = 0.8
# Validation accuracy missing from 100 % at the end: healthy nets of this kind 6 to 14 points, these 16 to 35.
MISSING = 0.1
LEFT = 0.47  # where there is no accuracy: of the loss of a constant prediction. Healthy programs 0.01 to 0.46

healthy = Recipe(depth=3, activation="tanh", init="xavier")
sick = healthy.but(init="normal")


def signature(run: Run) -> Evidence | None:
    shares = run["activation_saturated"]
    known = np.isfinite(shares).any(axis=0)
    lasting = np.where(known, np.minimum(shares[0], typical(shares)), 0.0)  # at the start and until the end
    place = int(np.nanargmax(lasting)) if known.any() else 0
    poor = left_over(run) > LEFT if run.accuracy is None else run.accuracy < 1 - MISSING
    if not lasting[place] > SATURATED or not poor:
        return None
    end = f"the accuracy ends at {run.accuracy:.0%}" if run.accuracy else f"the loss at {run['loss'][-1]:.3g}"
    return Evidence(
        seen=f"{lasting[place]:.0%} of the activations of {run.activations[place]} are beyond 0.97 of the range, from "
        f"the first step on, and {end}",
        usual="1 to 14 % at the first step, at most 70 % later",
        onset=0,
        place=run.activations[place],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Saturated units",
    cures={"Xavier init": sick.but(init="xavier")},
    false_cures={
        "Adam, which rescales the small gradients: 69 % accuracy": sick.but(optimizer="adam", lr=0.003),
        "ten times the learning rate, 1: 80 % accuracy": sick.but(lr=1.0),
    },
    harm=0.15,
    symptom="The first loss is far above chance level and training is slow: no NaN, normal gradients in the last "
    "layer, and an accuracy that stops far below the healthy twin's.",
    mechanism="784 weights of size 1 give sums of size 25, and tanh is flat beyond 3. A unit that always outputs +1 "
    "or -1 says little about the image and passes back almost no gradient.",
    formula=r"\tanh'(z) = 1 - \tanh^2(z), \qquad \tanh'(3) \approx 0.01",
    first_check="A histogram of each layer's activations before the first step: two spikes at the ends mean "
    "saturation.",
    remedy="An init that keeps the sums near 1 (Xavier for tanh and sigmoid), normalised inputs, or a normalisation "
    "layer before the activation.",
    reference="Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)",
    looks="stops too high",
    shows="activation_saturated",
    knobs=(
        Knob("init", ("normal", "default", "xavier", "he")),
        Knob("init_scale", (0.05, 1.0), log=True),
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("lr", (0.01, 1.0), log=True),
    ),
    learned={"mnist": 0.8},  # the sigmoid net learns more slowly: 86 %
    faces={"sigmoid": {"activation": "sigmoid"}},
    also_causes=("init_too_large",),
)
