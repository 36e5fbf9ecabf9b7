"""Nineteen of twenty units dropped at every step: the remaining ones hardly learn."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, unexplained
from labkit.training.recipe import Recipe

# Loss of the last batches, with dropout, minus that on the probe, without, over chance level. Digits: p = 0.2: 0.02;
# 0.5: 0.05; 0.95: 0.35. On photographs p = 0.2 already gives 0.13, because the loss is still falling.
EXTRA = 0.22
MOST = 1.5  # beyond, the loss in training is far above chance level, and something else is wrong
# The largest dropout rate, and the probe loss over that of a constant prediction. Rates of 0.1 to 0.5 are usual, 0.8
# still learns; with 0.95, programs of other tasks end at 0.67 to 0.94 and healthy ones at 0.03 to 0.45.
NEARLY_ALL, LEFT = 0.9, 0.25
HIGH = 0.25  # probe loss over chance level: p = 0.8 also has an extra of 0.35, but learns (0.09); 0.95: 0.45

healthy = Recipe(optimizer="adam", lr=0.003, dropout=0.2)
sick = healthy.but(dropout=0.95)


def nearly_all(run: Run) -> Evidence | None:
    """A dropout rate so high that hardly anything can be learned, whatever the task."""
    rates = run.facts.get("dropout_rates") or [0.0]
    highest, left = int(np.argmax(rates)), float(unexplained(run)[-1])
    if not (rates[highest] >= NEARLY_ALL and left > LEFT):
        return None
    place = run.facts["dropouts"][highest]
    return Evidence(
        seen=f"{place} drops {rates[highest]:.0%} of its inputs, and {left:.2f} of the loss of a constant prediction "
        "is left",
        usual="0.1 to 0.5, and less than 0.45 of that loss",
        onset=0,
        place=place,
        confidence=0.9,
    )


def signature(run: Run) -> Evidence | None:
    dropouts = run.facts.get("dropouts")
    if not dropouts or not run["train_mode"][-1]:
        return None
    if "constant_loss" in run.facts and (found := nearly_all(run)):
        return found
    batches, probe = run["loss"][-max(1, len(run) // 8) :], float(run["probe_loss"][-1])
    extra, chance = float(np.mean(batches)) - probe, chance_loss(run)
    if not (np.isfinite(extra) and EXTRA * chance < extra < MOST * chance and probe > HIGH * chance):
        return None
    return Evidence(
        seen=f"the loss is {probe + extra:.2f} in training and {probe:.2f} on training images with dropout off "
        f"({len(dropouts)} dropout layer{'s' if len(dropouts) > 1 else ''})",
        usual="0.05 to 0.15 nats between the two, with dropout of 0.2 to 0.5",
        onset=0,
        place=dropouts[-1],
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Too much dropout",
    cures={"dropout 0.2": sick.but(dropout=0.2), "dropout 0.5": sick.but(dropout=0.5)},
    false_cures={
        "a learning rate three times as high": sick.but(lr=0.01),
        "a net four times as wide": sick.but(width=512),
    },
    harm=0.1,
    symptom="The training loss stays far above the validation loss, the reverse of normal, and both stay high.",
    mechanism="With p = 0.95 only six of 128 units are left, another six at every step, and their outputs are scaled "
    "by twenty. The gradient is mostly noise from the random masks.",
    formula=r"h = \frac{m \odot a}{1 - p}, \qquad \mathrm{Var}(h) = \frac{p}{1 - p} \, a^2",
    first_check="The loss on the same training images with dropout on and off: a large gap means that noise dominates.",
    remedy="Lower p: 0.2 to 0.5 is usual for hidden layers. First check that the net overfits at all; a net that "
    "underfits needs no dropout.",
    reference="Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting (2014)",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("dropout", (0.0, 0.95)),
        Knob("width", (32, 512), log=True),
        Knob("lr", (3e-4, 0.01), log=True),
        Knob("depth", (2, 4)),
    ),
    also_causes=("underfit", "dead_relu", "learning_rate_left_low", "labels_shuffled"),
    not_on_cifar10="In 400 steps on photographs dropout 0.2 gives a gap of 0.3 nats and 0.95 one of 0.4: too close to "
    "tell.",
)
