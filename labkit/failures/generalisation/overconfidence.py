"""Two thousand images for six hundred steps: the answers stay as right as they were and grow ever surer."""

import numpy as np

from labkit.failure_mode import Evidence, FailureMode, Knob
from labkit.recipe import Recipe
from labkit.run import Run

RISE = 1.15  # validation loss at the end over its lowest. With weight decay 1.0 to 1.05, without 1.2 to 1.35.
SURE = 0.045  # mean confidence minus accuracy. Healthy runs here: -0.01 to 0.035; sick ones: 0.055 to 0.065.
KEPT = 0.02  # the accuracy has not fallen from its best by more than this: not the net got worse, its odds did
GAP = 0.6  # nats between the two losses, from which the data are simply too few

healthy = Recipe(samples=2000, optimizer="adamw", lr=0.003, weight_decay=1.0, steps=600)
sick = healthy.but(weight_decay=0.0)


def signature(run: Run) -> Evidence | None:
    losses, right = run["val_loss"], run["val_accuracy"]
    if not np.isfinite([*losses, *run["val_confidence"], *run["probe_loss"]]).all():
        return None
    lowest, sure = int(np.argmin(losses)), float(run["val_confidence"][-1] - right[-1])
    if losses[-1] < RISE * losses[lowest] or sure < SURE or right[-1] < right.max() - KEPT or run.gap[-1] > GAP:
        return None
    return Evidence(
        seen=f"{run['val_confidence'][-1]:.1%} sure and {right[-1]:.1%} right; the validation loss rose from "
        f"{losses[lowest]:.3f} to {losses[-1]:.3f} though the accuracy stayed",
        usual="a confidence within 3 points of the accuracy",
        onset=int(run["val_step"][lowest]),
        confidence=0.8,
    )


failure = FailureMode(
    title="Overconfidence",
    healthy=healthy,
    sick=sick,
    cures={
        "AdamW with weight decay 1": sick.but(weight_decay=1.0),
        "10,000 samples": sick.but(samples=10_000),
    },
    false_cures={"weight decay 0.01, PyTorch's default": sick.but(weight_decay=0.01)},
    signature=signature,
    harm=0.0,
    costs="The accuracy stays; the probabilities do not: the validation loss rises by a fifth or more, and a net that "
    "says 96 % is right in 90 % of the cases.",
    symptom="The validation loss rises while the validation accuracy stays where it is.",
    mechanism="Once every training image is right, the loss can still fall by making the outputs larger. Larger outputs "
    "make right and wrong answers surer alike, and each sure mistake costs more.",
    first_check="Mean confidence beside accuracy on the validation set: they should agree.",
    remedy="Decoupled weight decay that is strong enough, more data, or an early stop at the lowest validation loss. "
    "A temperature fitted on held-out data repairs the probabilities afterwards.",
    reference="Guo et al., On Calibration of Modern Neural Networks (2017)",
    shows="val_confidence",
    knobs=(
        Knob("weight_decay", (0.0, 2.0)),
        Knob("samples", (1000, 10_000), log=True),
        Knob("steps", (100, 800)),
        Knob("dropout", (0.0, 0.7)),
        Knob("lr", (1e-3, 0.01), log=True),
    ),
    cifar10="On 2,000 photographs a perceptron does not grow too sure of what it knows, it overfits outright.",
)
