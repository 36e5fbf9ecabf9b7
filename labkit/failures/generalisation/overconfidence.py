"""Two thousand images for six hundred steps: the answers stay as right as they were and grow ever surer."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Validation loss at the end over its lowest. Weight decay 1: 1.0 to 1.05; none: 1.21 to 1.28; 10,000 samples: 1.17.
RISE = 1.15
# Mean confidence minus accuracy. 10,000 samples: 0.02 to 0.03; sick runs: 0.055 to 0.065. A thousand samples have 0.055
# too, with a loss that rises by 7 to 12 % only.
SURE = 0.045
SKILL = 0.5  # validation accuracy: a net that never learned is not sure of itself, it is wrong
KEPT = 0.02  # the accuracy has not fallen from its best by more than this: not the net got worse, its odds did
# Loss on the training probe, in nats: the mode is about what happens once every training image is right. Sick runs:
# 0.0009 to 0.0011. Nets that large steps still throw about (Adam at 0.01, momentum at 0.1) can be five points too sure
# for a moment as well, but at 0.03 or more they have images left to learn.
BY_HEART = 0.005
GAP = 0.6  # nats between the two losses, from which the data are simply too few

healthy = Recipe(optimizer="adamw", lr=0.003, steps=600)
sick = healthy.but(samples=2000)


def signature(run: Run) -> Evidence | None:
    losses, right = run["val_loss"], run["val_accuracy"]
    if not np.isfinite([*losses, *run["val_confidence"], *run["probe_loss"]]).all():
        return None
    if right[-1] < SKILL:
        return None
    lowest, sure = int(np.argmin(losses)), float(run["val_confidence"][-1] - right[-1])
    surer = losses[-1] >= RISE * losses[lowest] and sure >= SURE and right[-1] >= right.max() - KEPT
    if not surer or run["probe_loss"][-1] > BY_HEART or run.gap[-1] > GAP:
        return None
    return Evidence(
        seen=f"{run['val_confidence'][-1]:.1%} sure and {right[-1]:.1%} right; the validation loss rose from "
        f"{losses[lowest]:.3f} to {losses[-1]:.3f} though the accuracy stayed and the training loss is down to "
        f"{run['probe_loss'][-1]:.2g}",
        usual="a confidence within 3 points of the accuracy",
        onset=int(run["val_step"][lowest]),
        confidence=0.8,
    )


failure = FailureMode(
    title="Overconfidence",
    healthy=healthy,
    sick=sick,
    cures={"10,000 samples": sick.but(samples=10_000)},
    false_cures={
        "weight decay 0.01, PyTorch's default: as sure as before": sick.but(weight_decay=0.01),
        "weight decay 1: the odds are honest again, but 91 % stay 91 %": sick.but(weight_decay=1.0),
    },
    signature=signature,
    harm=0.02,
    costs="Besides some points of accuracy, the probabilities: the validation loss rises by a fifth or more while the "
    "accuracy stays, and a net that says 96 % is right in 90 % of the cases.",
    symptom="The validation loss rises while the validation accuracy stays where it is.",
    mechanism="Once every training image is right, the loss can still fall by making the outputs larger. Larger "
    "outputs make right and wrong answers surer alike, and each sure mistake costs more.",
    first_check="Mean confidence beside accuracy on the validation set: they should agree.",
    remedy="More data. Decoupled weight decay of 1 keeps the confidence within 3 points of the accuracy, as an early "
    "stop at the lowest validation loss does; neither adds accuracy. A temperature fitted on held-out data repairs "
    "the probabilities afterwards.",
    reference="Guo et al., On Calibration of Modern Neural Networks (2017)",
    looks="validation worse",
    shows="val_confidence",
    knobs=(
        Knob("weight_decay", (0.0, 2.0)),
        Knob("samples", (1000, 10_000), log=True),
        Knob("steps", (100, 800)),
        Knob("dropout", (0.0, 0.7)),
        Knob("lr", (1e-3, 0.01), log=True),
    ),
    cifar10="On 2,000 photographs the perceptron overfits outright: its validation loss triples, from 2.0 to 6.4.",
)
