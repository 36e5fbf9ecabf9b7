"""Nineteen of twenty units silenced at every step: what is left learns from scraps."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Loss of the last batches, with dropout, minus the loss on the probe, without. Digits: p = 0.2: 0.05; 0.5: 0.12;
# 0.95: 0.8 nats. On photographs 0.2 has 0.3 already, because the loss still falls.
EXTRA = 0.5
HIGH = 0.25  # probe loss as a share of ln(classes): p = 0.8 has an extra of 0.35 too, but learns (0.09); 0.95: 0.45

healthy = Recipe(optimizer="adam", lr=0.003, dropout=0.2)
sick = healthy.but(dropout=0.95)


def signature(run: Run) -> Evidence | None:
    dropouts = run.facts.get("dropouts")
    if not dropouts or not run["train_mode"][-1]:
        return None
    batches, probe = run["loss"][-max(1, len(run) // 8) :], float(run["probe_loss"][-1])
    extra = float(np.mean(batches)) - probe
    if not (np.isfinite(extra) and extra > EXTRA and probe > HIGH * np.log(run.facts.get("classes", 10))):
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
    title="Too much dropout",
    healthy=healthy,
    sick=sick,
    cures={"dropout 0.2": sick.but(dropout=0.2), "dropout 0.5": sick.but(dropout=0.5)},
    false_cures={
        "a learning rate three times as high": sick.but(lr=0.01),
        "a net four times as wide": sick.but(width=512),
    },
    signature=signature,
    harm=0.1,
    symptom="The training loss stays far above the validation loss, the wrong way round, and both stay high.",
    mechanism="With p = 0.95 a net of 128 units is a net of six, another six at every step, and the survivors are made "
    "twenty times as loud. The gradient is mostly the noise of that lottery.",
    first_check="The loss on the same training images with dropout on and off: a wide gap says that the noise rules.",
    remedy="Lower p: 0.2 to 0.5 is usual for hidden layers. First see that the net overfits at all; a net that "
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
    also_causes=("underfit", "dead_relu"),
    cifar10="In 400 steps on photographs dropout 0.2 opens a gap of 0.3 nats and 0.95 one of 0.4: too near to tell.",
)
