"""Two thousand images for six hundred steps: accuracy stays the same while confidence keeps growing."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Validation loss at the end over its lowest. Weight decay 1: 1.0 to 1.05; none: 1.21 to 1.28; 10,000 samples: 1.17.
RISE = 1.15
# Mean confidence minus accuracy. 10,000 samples: 0.02 to 0.03; sick runs: 0.055 to 0.065. A thousand samples have 0.055
# too, but their loss only rises by 7 to 12 %.
OVERCONFIDENT = 0.045
SKILL = 0.5  # validation accuracy: a net that never learned is wrong, not overconfident
KEPT = 0.02  # the accuracy has fallen by at most this from its best: only the probabilities got worse
# Loss on the training probe, in nats: the mode is about what happens once every training image is correct. Sick runs:
# 0.0009 to 0.0011. Nets with unstable large steps (Adam at 0.01, momentum at 0.1) can also be five points overconfident
# for a while, but at 0.03 or more they have images left to learn.
MEMORISED = 0.005
GAP = 0.6  # nats between the two losses; above this there is simply too little data

healthy = Recipe(optimizer="adamw", lr=0.003, steps=600)
sick = healthy.but(samples=2000)


def signature(run: Run) -> Evidence | None:
    losses, accuracy = run["val_loss"], run["val_accuracy"]
    if not np.isfinite([*losses, *run["val_confidence"], *run["probe_loss"]]).all():
        return None
    if accuracy[-1] < SKILL:
        return None
    lowest, excess = int(np.argmin(losses)), float(run["val_confidence"][-1] - accuracy[-1])
    rose, kept = losses[-1] >= RISE * losses[lowest], accuracy[-1] >= accuracy.max() - KEPT
    if not (rose and kept and excess >= OVERCONFIDENT) or run["probe_loss"][-1] > MEMORISED or run.gap[-1] > GAP:
        return None
    return Evidence(
        seen=f"a confidence of {run['val_confidence'][-1]:.1%} at {accuracy[-1]:.1%} accuracy; the validation loss "
        f"rose from {losses[lowest]:.3f} to {losses[-1]:.3f} while the accuracy stayed the same and the training loss "
        f"fell to {run['probe_loss'][-1]:.2g}",
        usual="a confidence within 3 points of the accuracy",
        onset=int(run["val_step"][lowest]),
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Overconfidence",
    cures={"10,000 samples": sick.but(samples=10_000)},
    false_cures={
        "weight decay 0.01, PyTorch's default: just as overconfident": sick.but(weight_decay=0.01),
        "weight decay 1: calibrated again, but the accuracy stays at 91 %": sick.but(weight_decay=1.0),
    },
    harm=0.02,
    costs="A few points of accuracy, and the probabilities: the validation loss rises by a fifth or more while the "
    "accuracy stays, and a net with 96 % confidence is correct in 90 % of the cases.",
    symptom="The validation loss rises while the validation accuracy stays the same.",
    mechanism="Once every training image is correct, the loss can still fall if the outputs grow. Larger outputs make "
    "correct and wrong predictions more confident, and each confident mistake costs more.",
    formula=r"L(c z) \text{ falls as } c \to \infty \text{ once every training image is correct}",
    first_check="Mean confidence next to accuracy on the validation set: they should agree.",
    remedy="More data. Decoupled weight decay of 1 keeps the confidence within 3 points of the accuracy, and so does "
    "early stopping at the lowest validation loss; neither adds accuracy. Temperature scaling on held-out data fixes "
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
    not_on_cifar10="On 2,000 photographs the perceptron overfits strongly: its validation loss triples, from 2.0 to "
    "6.4.",
)
