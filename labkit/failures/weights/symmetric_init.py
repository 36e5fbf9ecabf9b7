"""All weights 0.01: every unit of a layer computes the same, learns the same, and 128 units are one."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import unlearned
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of a layer's units that do exactly what another unit does, before the first step. Random inits give 0 to
# 6 %; a constant gives 100 %.
ALIKE = 0.9
POOR = 0.5  # of chance level, at the end: healthy runs 0.01 to 0.1, one unit per layer 0.8 to 1

healthy = Recipe(init="he")
sick = healthy.but(init="constant", init_scale=0.01)


def signature(run: Run) -> Evidence | None:
    twins = run["twins"][0]
    if not np.isfinite(twins).any() or not np.nanmax(twins) > ALIKE or not unlearned(run, POOR):
        return None
    place = int(np.nanargmax(twins))
    return Evidence(
        seen=f"{twins[place]:.0%} of the units of {run.activations[place]} answer every image exactly as another unit "
        f"does, and at the end {run['twins'][-1][place]:.0%}",
        usual="0 to 6 %",
        onset=0,
        place=run.activations[place],
        confidence=0.95,
    )


failure = FailureMode(
    title="Symmetric init",
    healthy=healthy,
    sick=sick,
    cures={
        "He init": sick.but(init="he", init_scale=1.0),
        "PyTorch's default init": sick.but(init="default", init_scale=1.0),
    },
    false_cures={
        "four times the width: 512 copies of one unit": sick.but(width=512),
        "Adam": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.7,
    symptom="The loss falls a little and stops high. The net has 128 hidden units and behaves as if it had one.",
    mechanism="Equal weights get equal gradients, so they stay equal for ever. Nothing in gradient descent breaks a "
    "tie; only a random start does.",
    first_check="Compare the rows of a weight matrix: their spread is 0, its rank is 1.",
    remedy="Draw the weights at random, by He or by PyTorch's default. Width, time and Adam do not help.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 8.4",
    looks="stops too high",
    shows="twins",
    knobs=(
        Knob("init", ("constant", "default", "he", "xavier")),
        Knob("init_scale", (1e-3, 1.0), log=True),
        Knob("width", (8, 512), log=True),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=("dead_relu", "learning_rate_too_high"),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
