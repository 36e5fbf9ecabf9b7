"""One hundred images: memorised in ten steps, and every further step makes validation worse."""

import numpy as np

from labkit.failures.mode import Branch, ClassicCurve, Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, unexplained
from labkit.training.recipe import Recipe

# Validation loss at the end over its lowest. Healthy runs rise to at most 1.4; 100 samples give 2.5 to 4.
RISE = 1.5
# Validation loss minus training loss, in nats. Healthy runs here end at 0.1 to 0.3, 100 samples at 3 to 10.
GAP = 0.6
MEMORISED = 0.99  # training accuracy; a net that still misses training images has not memorised them
# Losses over that of a constant prediction, on the probe and in validation, for tasks without an accuracy. Healthy
# small programs end at 0.03 to 0.45 in both; twelve samples at 0 to 0.03 and 0.5 to 3.
FITTED, USELESS = 0.05, 0.45
# With more than HANDFUL samples a validation loss of half that of a constant prediction is what so few can teach: a
# quarter of the samples of small programs (100 to 200) gives 0.5 to 0.6, at its lowest and at the end. There it must
# have risen. With fewer, the gap between the two losses is enough: a ranking or smoothed labels leave 0.25 to 0.45 on
# the probe.
HANDFUL, APART = 50, 0.4
# Different samples that were trained on, where they are known. Small healthy programs have 400 to 3,000; a validation
# set that differs from the training set makes the same curves with any number.
FEW = 200

# Adam memorises within these 400 steps; the validation loss of plain SGD only rises to 1.2 times its lowest.
healthy = Recipe(depth=3, optimizer="adam", lr=0.003)
sick = healthy.but(samples=100)


def without_accuracy(run: Run) -> Evidence | None:
    """The same for regression and other tasks: fitted almost exactly, and of no use on new samples."""
    fitted, useless = float(unexplained(run)[-1]), float(run["val_loss"][-1] / chance_loss(run))
    handful = run.facts.get("different_samples", FEW) <= HANDFUL
    if not useless > USELESS or not (fitted < FITTED or (handful and useless - fitted > APART)):
        return None
    rose = run["val_loss"][-1] > RISE * run["val_loss"].min()
    if not handful and "different_samples" in run.facts and not (rose and useless > 1):
        return None
    return Evidence(
        seen=f"of the loss of a constant prediction {fitted:.1%} is left on training samples, and {useless:.0%} in "
        "validation",
        usual="about the same share in both, at most 30 % apart",
        onset=int(run["val_step"][int(np.argmin(run["val_loss"]))]),
        confidence=0.8,
    )


def signature(run: Run) -> Evidence | None:
    if not {"val_loss", "probe_loss"} <= set(run.traces) or not np.isfinite(run["val_loss"]).all():
        return None
    few = run.facts.get("different_samples", FEW)
    if few > FEW:
        return None
    if "probe_accuracy" not in run or few < FEW:
        return without_accuracy(run) or with_accuracy(run)
    return with_accuracy(run)


def with_accuracy(run: Run) -> Evidence | None:
    """For classes: every training sample is correct, and the validation loss has risen from its lowest."""
    if "probe_accuracy" not in run:
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
    formula=r"\text{parameters} \gg N: \quad L_{\text{train}} \to 0, \quad L_{\text{val}} \not\to 0",
    first_check="Training and validation loss on the same axes, validated every few steps: validation turns early.",
    # The sick recipe over 5 seeds, validation accuracy: as it is 67.8 +- 0.6 %, augment="affine" 73.4 +- 1.4 %, "crop"
    # 74.0 +- 0.6 %, dropout=0.5 67.9 +- 0.8 %. Stopped at the lowest validation loss: 1.14 instead of 2.98, and 65 %.
    remedy="More data, or else augmentation: 73 % instead of 68 % on 100 digits, while dropout stays at 68 %, and "
    "early stopping lowers the validation loss from 3.0 to 1.1 but not the error (5 seeds). On 100 digits no "
    "regulariser brought the accuracy close to what more data gives.",
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
    headline=3,
    symptom_tree=(Branch("validation worse", "Training accuracy?", "100 %: memorised"),),
    classic=ClassicCurve(8, "overfits"),
)
