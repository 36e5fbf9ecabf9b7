"""One hundred images: memorised in ten steps, and every further step makes validation worse."""

import numpy as np

from labkit.failures.mode import Branch, ClassicCurve, Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Validation loss at the end over its lowest. Healthy runs rise to at most 1.4; 100 samples give 2 to 3.
RISE = 1.5
# Validation loss minus training loss, in nats. Healthy runs here end at 0.1 to 0.3, 100 samples at 2 to 4.
GAP = 0.6
MEMORISED = 0.99  # training accuracy; a net that still misses training images has not memorised them

healthy = Recipe()
sick = healthy.but(samples=100)


def signature(run: Run) -> Evidence | None:
    if not {"val_loss", "probe_loss", "probe_accuracy"} <= set(run.traces) or not np.isfinite(run["val_loss"]).all():
        return None
    losses, lowest = run["val_loss"], int(np.argmin(run["val_loss"]))
    gap = float(run.gap[-1])
    if losses[-1] < RISE * losses[lowest] or gap < GAP or run["probe_accuracy"][-1] < MEMORISED:
        return None
    turned = int(run["val_step"][lowest])
    return Evidence(
        seen=f"a training accuracy of {run['probe_accuracy'][-1]:.0%} with loss {run['probe_loss'][-1]:.1g}, while the "
        f"validation loss rose from {losses[lowest]:.2f} at step {turned} to {losses[-1]:.2f}",
        usual=f"a gap of at most 0.3 between the two losses, not {gap:.1f}",
        onset=turned,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Too few samples",
    cures={"10,000 samples": sick.but(samples=10_000)},
    false_cures={
        "dropout 0.5": sick.but(dropout=0.5),
        "weight decay 0.01": sick.but(weight_decay=0.01),
        "a small net of 8 units": sick.but(width=8),
    },
    harm=0.2,
    symptom="The training loss falls to almost zero, while the validation loss starts to rise after ten steps. The "
    "validation accuracy stops far below the training accuracy.",
    mechanism="The net can memorise a hundred images, and they do not determine which of the many fitting functions "
    "is correct. More training only makes wrong predictions more confident.",
    first_check="Training and validation loss on the same axes, validated every few steps: validation turns early.",
    remedy="More data. Augmentation, early stopping and weight decay narrow the gap; on 100 digits no regulariser "
    "brought the accuracy close to what more data gives.",
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
    headline=3,
    symptom_tree=(Branch("validation worse", "Training accuracy?", "100 %: memorised"),),
    classic=ClassicCurve(8, "overfits"),
)
