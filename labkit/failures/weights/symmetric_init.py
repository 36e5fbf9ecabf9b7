"""All weights 0.01: every unit of a layer computes and learns the same, so 128 units act as one."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import first_weights, left_over, unlearned
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Share of a layer's units with exactly the same activations as another unit, before the first step. Random inits give
# 0 to 6 %; a constant gives 100 %.
ALIKE = 0.9
POOR = 0.5  # of chance level, at the end: healthy runs 0.01 to 0.1, one unit per layer 0.8 to 1
# Where weights were recorded before the first step: the share of layers in which all are the same number, not 0, and
# what is left of the loss of a constant prediction. Healthy programs 0 and 0.01 to 0.46; alike 1 and 0.27 to 1.
MOST, LEFT = 0.5, 0.25

healthy = Recipe(init="he")
sick = healthy.but(init="constant", init_scale=0.01)


def all_one_number(run: Run) -> Evidence | None:
    """For nets of any kind, such as recurrent ones: do all weights of a layer begin as the same number?"""
    alike, gains = first_weights(run, "alike"), first_weights(run, "gain")
    same = [name for name in alike if alike[name] and gains[name] > 0]
    if not same or len(same) < MOST * len(alike) or not left_over(run) > LEFT:
        return None
    return Evidence(
        seen=f"in {len(same)} of {len(alike)} layers all weights are the same number before the first step; "
        f"{left_over(run):.2f} of the loss of a constant prediction is left",
        usual="a random number for each weight: 0 % alike",
        onset=0,
        place=same[0],
        confidence=0.97,
    )


def signature(run: Run) -> Evidence | None:
    return all_one_number(run) if first_weights(run, "alike") else twin_units(run)


def twin_units(run: Run) -> Evidence | None:
    """Do the units of a layer have the same activations?"""
    twins = run["twins"][0]
    if not np.isfinite(twins).any() or not np.nanmax(twins) > ALIKE or not unlearned(run, POOR):
        return None
    place = int(np.nanargmax(twins))
    return Evidence(
        seen=f"{twins[place]:.0%} of the units of {run.activations[place]} have exactly the activations of another unit"
        f", and at the end {run['twins'][-1][place]:.0%}",
        usual="0 to 6 %",
        onset=0,
        place=run.activations[place],
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Symmetric init",
    cures={
        "He init": sick.but(init="he", init_scale=1.0),
        "PyTorch's default init": sick.but(init="default", init_scale=1.0),
    },
    false_cures={
        "four times the width: 512 copies of one unit": sick.but(width=512),
        "Adam": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.7,
    symptom="The loss falls a little and stays high. The net has 128 hidden units and behaves as if it had one.",
    mechanism="Equal weights get equal gradients, so they stay equal forever. Gradient descent never breaks the "
    "symmetry; only a random init does.",
    formula=r"w_i = w_j \quad \Rightarrow \quad \frac{\partial L}{\partial w_i} = \frac{\partial L}{\partial w_j}",
    first_check="Compare the rows of a weight matrix: they are identical, its rank is 1.",
    remedy="Use a random init: He or PyTorch's default. More width, more steps and Adam do not help.",
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
)
