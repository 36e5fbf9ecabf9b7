"""The validation inputs have their columns in another order: the same values, where the net expects others."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, input_deviation, unexplained
from labkit.training.parts import plain_evaluate
from labkit.training.recipe import Recipe

# Measured on MNIST and CIFAR-10 and, through `watch`, on seven small programs with such a fault and 64 healthy ones.
RECENT = 8  # batches before an evaluation
SOME = 4  # steps of the first pass: fewer have taught the net nothing
# Validation loss minus the loss of new batches in the first pass, over the loss of a constant prediction. Here 0.28 to
# 1.6, on CIFAR-10 0.24; healthy up to 0.14, most below 0.05. Where columns differ too, nothing else is asked for.
FIRST = 0.2
# Share of columns with another mean or standard deviation at validation. Healthy: 0, on MNIST up to 0.06; here 0.25 to
# 0.48, 0.14 on CIFAR-10, and 0 where all columns are alike.
APART = 0.2
# At the end, over the loss of a constant prediction: what is left on the probe (here 0.01 to 0.3, on CIFAR-10 0.55),
# and the validation gap (here 0.6 to 3.9; healthy up to 0.41).
LEARNED, LOST = 0.7, 0.5
# Fall of the validation loss over that of the probe's, both as logarithms, from the first evaluation on: up to 0.1
# here; healthy 0.3 to 1. A validation loss in another unit, such as a sum, falls as it does in a healthy run.
ALIKE = 0.2
# Where a net starts slowly there is no such gap in the first pass. After at most PASSES through the samples this much
# is left on the probe, and validation was never below a constant prediction: no net memorises so fast (shuffled labels
# 0.7 and more), so what it has learned should help there. Three programs: 0.04 to 0.6.
PASSES, SOON = 6, 0.6
STRETCHED = 1.5  # ratio of the standard deviations: healthy 1.02; another scale is another failure
CHANGED = 0.5  # share of the validation inputs that are new each time: augmented; healthy 0

healthy = Recipe(momentum=0.0, steps=300)


def evaluate_transposed(training, split) -> dict:
    """The plain evaluation, on images whose rows and columns are swapped, as column-major files have them."""
    return plain_evaluate(training, split._replace(x=split.x.transpose(2, 3).contiguous()))


sick = healthy.but(evaluate=evaluate_transposed)


def never_repeats(run: Run) -> bool:
    """Is every sample new? Then nobody knows how long a pass is: with augmentation a sample may come in many forms."""
    return run.facts.get("fresh_steps", 0) >= run["val_step"][-1]


def first_gap(run: Run) -> tuple[float, int]:
    """Validation loss minus training loss in the first pass, where no sample came twice, over that of a constant.

    The loss of a batch that is new to the net is a validation loss, too, so there is no gap but by chance. The training
    loss is that of recent batches or of the probe, whichever is higher. Returns the last gap and its step.
    """
    steps = run["val_step"]
    fresh = np.flatnonzero((steps >= SOME) & (steps <= run.facts.get("fresh_steps", 0)))
    if not len(fresh):
        return 0.0, 0
    place = int(fresh[0] if never_repeats(run) else fresh[-1])
    rows = run["step"] < steps[place]
    trained = max(float(run["loss"][rows][-RECENT:].mean()), float(run["probe_loss"][place]))
    return (float(run["val_loss"][place]) - trained) / chance_loss(run), int(steps[place])


def falls_alike(run: Run) -> bool:
    """Does the validation loss fall with that of the probe? Then it only has another unit."""
    with np.errstate(all="ignore"):
        validated, trained = (np.log(run[name][0] / run[name][-1]) for name in ("val_loss", "probe_loss"))
    return not validated < ALIKE * trained


def is_measured_otherwise(run: Run) -> bool:
    """Other scale, other images at each validation, train mode: other failures."""
    trained, validated = input_deviation(run), float(run["val_input_std"][-1])
    stretched = max(trained, validated) > STRETCHED * min(trained, validated)
    return stretched or run.facts.get("val_changed", 0.0) > CHANGED or run["val_train_mode"][-1] > 0


def learned_soon_and_in_vain(run: Run) -> Evidence | None:
    """Was much learned before anything could be memorised, and validation was never better than a constant?"""
    size, samples = run.facts.get("batch_length") or 0, run.facts.get("different_samples") or 0
    early = run["val_step"] * size <= PASSES * samples
    left, validated = unexplained(run)[early], run["val_loss"] / chance_loss(run)
    if never_repeats(run) or not len(left) or not left.min() < SOON or not validated.min() > 1:
        return None
    return Evidence(
        seen=f"within {PASSES} passes through the samples the loss on the probe falls to {left.min():.2f} of that of a "
        f"constant prediction, and in validation it is never below {validated.min():.2f}",
        usual="a validation loss that falls at first as that of the probe does",
        onset=0,
        place="validation set",
        confidence=0.65,
    )


def signature(run: Run) -> Evidence | None:
    with np.errstate(all="ignore"):
        left, lost = unexplained(run)[-1], run.gap[-1] / chance_loss(run)
    if not (left < LEARNED and lost > LOST) or is_measured_otherwise(run) or falls_alike(run):
        return None
    apart, (gap, step) = run.facts.get("val_columns_apart", 0.0), first_gap(run)
    if not (gap > FIRST or apart > APART):
        return learned_soon_and_in_vain(run)
    early = (
        f"after {step} steps, before any sample came again, validation is worse than new batches by {gap:.2f} of the "
    )
    return Evidence(
        seen=f"{apart:.0%} of the input columns have another mean or standard deviation at validation; "
        + (f"{early}loss of a constant prediction; " if gap > FIRST else "")
        + f"at the end {lost:.2f} of it lie between training and validation samples",
        usual="0 % of the columns, and 0.14 at most in the first pass: batches that are new to the net validate it too",
        onset=0,
        place="validation set",
        confidence=0.9 if apart > APART else 0.75,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Columns differ at validation",
    cures={"validation images with rows and columns as in training": sick.but(evaluate="plain_evaluate")},
    false_cures={
        "weight decay 0.01: 19 to 21 %": sick.but(weight_decay=0.01),
        "dropout 0.5, as if the net were overfitting: 19 to 21 %": sick.but(dropout=0.5),
        "six times as many training images: 19 %": sick.but(samples=60_000),
    },
    harm=0.4,
    symptom="It looks like overfitting: training is fine and validation far behind. But the gap is there from the "
    "first epoch on, before the net can have memorised anything, and more data or regularisation do not close it.",
    mechanism="A net knows its inputs by their places. If the columns of a table are sorted by another rule, if images "
    "are stored with rows and columns swapped, or if categories were numbered again, it receives values of the usual "
    "size that mean something else.",
    formula=r"\hat{y}(P x) \neq \hat{y}(x) \quad \text{for a permutation } P",
    first_check="Mean and standard deviation of each column, of the training and the validation inputs, side by side; "
    "for images the mean image. Where all columns are alike, compare their names.",
    remedy="Select columns by name, in one function for both sets, and save the list with the net. Check shapes and "
    "axis order where files are read; encode categories with the table made from the training set.",
    reference="Breck et al., Data Validation for Machine Learning (2019), on training-serving skew",
    looks="validation worse",
    shows="val_loss",
    knobs=(
        Knob("steps", (50, 1000)),
        Knob("samples", (1000, 60_000), log=True),
        Knob("dropout", (0.0, 0.7)),
        Knob("weight_decay", (0.0, 0.1)),
    ),
    also_causes=("overconfidence", "too_few_samples"),
)
