"""One hundred images: learned by heart in ten steps, and worse on everything else with every step after."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Validation loss at the end over its lowest. Healthy runs drift up by as much as 1.4; 100 samples give 2 to 3.
RISE = 1.5
# Validation loss minus training loss, in nats. Healthy runs here end at 0.1 to 0.3, 100 samples at 2 to 4.
GAP = 0.6
BY_HEART = 0.99  # training accuracy; a net that still misses training images is not repeating them

healthy = Recipe()
sick = healthy.but(samples=100)


def signature(run: Run) -> Evidence | None:
    if not {"val_loss", "probe_loss", "probe_accuracy"} <= set(run.traces) or not np.isfinite(run["val_loss"]).all():
        return None
    losses, lowest = run["val_loss"], int(np.argmin(run["val_loss"]))
    gap = float(run.gap[-1])
    if losses[-1] < RISE * losses[lowest] or gap < GAP or run["probe_accuracy"][-1] < BY_HEART:
        return None
    turned = int(run["val_step"][lowest])
    return Evidence(
        seen=f"training images {run['probe_accuracy'][-1]:.0%} right with loss {run['probe_loss'][-1]:.1g}, while the "
        f"validation loss rose from {losses[lowest]:.2f} at step {turned} to {losses[-1]:.2f}",
        usual=f"a gap of at most 0.3 between the two losses, not {gap:.1f}",
        onset=turned,
    )


failure = FailureMode(
    title="Too few samples",
    healthy=healthy,
    sick=sick,
    cures={"10,000 samples": sick.but(samples=10_000)},
    false_cures={
        "dropout 0.5": sick.but(dropout=0.5),
        "weight decay 0.01": sick.but(weight_decay=0.01),
        "a small net of 8 units": sick.but(width=8),
    },
    signature=signature,
    harm=0.2,
    symptom="The training loss falls to almost nothing, while the validation loss turns after ten steps and rises. "
    "The validation accuracy stops far below the training accuracy.",
    mechanism="The net can store a hundred images one by one, and nothing in them says which of the many fitting "
    "functions is the task. More training only makes the wrong answers surer.",
    first_check="Training and validation loss on the same axes, validated every few steps: the turn comes early.",
    remedy="More data. Augmentation, early stopping and weight decay narrow the gap; on 100 digits none of the "
    "regularisers brought the accuracy near what data bring.",
    reference="Zhang et al., Understanding deep learning requires rethinking generalization (2017)",
    looks="validation worse",
    shows="gap",
    knobs=(
        Knob("samples", (100, 10_000), log=True),
        Knob("dropout", (0.0, 0.9)),
        Knob("weight_decay", (0.0, 0.1)),
        Knob("width", (8, 512), log=True),
        Knob("augment", ("none", "crop", "affine")),
    ),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
