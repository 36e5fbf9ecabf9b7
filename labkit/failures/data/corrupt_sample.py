"""One image of one batch, 300 times too bright and mislabelled: one step that undoes a hundred."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, outlier_batches
from labkit.recording.run import Run
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of a batch's samples that are outliers; one of 128 is 0.8 %, a fully corrupt batch 100 %.
A_FEW = 0.5
# One that comes again in every epoch, in small programs of other tasks with batch norm or Adam, which keep its gradient
# small: its largest value over the usual one (healthy: 1 to 3; here 1e4 to 1e5), and the loss left on the probe over
# that of a constant prediction (healthy: 0.01 to 0.46; here 1 to 3).
HUGE, LEFT = 1e3, 0.9

STEP, FACTOR = 270, 300
healthy = Recipe(steps=300)


def one_corrupt_sample(split, recipe, generator):
    """The usual batches; at STEP the first image is FACTOR times too large and has the label of the next class."""
    for step, (x, y) in enumerate(shuffled(split, recipe, generator)):
        if step == STEP:
            x, y = x.clone(), y.clone()
            x[0] *= FACTOR
            y[0] = (y[0] + 1) % 10
        yield x, y


sick = healthy.but(batches=one_corrupt_sample)


def keeps_coming(run: Run) -> Evidence | None:
    """A few samples are so large that nothing is learned from the others."""
    if "input_max" not in run:
        return None
    rows, largest = np.flatnonzero(run["input_outliers"] > 0), run["input_max"]
    with np.errstate(all="ignore"):
        times = float(np.nanmax(largest) / np.nanmedian(largest)) if len(rows) else 0.0
    if not (times > HUGE and left_over(run) > LEFT and np.median(run["input_outliers"][rows]) <= A_FEW):
        return None
    return Evidence(
        seen=f"{len(rows)} of {len(run)} batches have a sample with values up to {times:.2g} times the usual, and "
        f"{left_over(run):.2f} of the loss of a constant prediction is left",
        usual="largest values within 3 times the usual",
        onset=int(rows[0]),
        place=f"batch {rows[0]}",
        confidence=0.95,
    )


def signature(run: Run) -> Evidence | None:
    return undone_by_one_step(run) or keeps_coming(run)


def undone_by_one_step(run: Run) -> Evidence | None:
    """Did a batch with an outlier cause a jump of gradient and loss?"""
    found = [one for one in outlier_batches(run) if one.is_harmful and one.outliers <= A_FEW]
    if not found:
        return None
    return Evidence(
        seen=str(found[0]),
        usual="0 % outliers, gradients within 2.2 times their median",
        onset=found[0].step,
        place=f"batch {found[0].step}",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Corrupt sample",
    cures={
        "clipping the gradient norm to 1": sick.but(clip=1.0),
        "skipping steps whose gradient is ten times the usual": sick.but(step="skipping_step"),
    },
    false_cures={
        "momentum 0.9, to average it away: 84 %": sick.but(momentum=0.9),
        "a third of the learning rate: 88 %": sick.but(lr=0.03),
    },
    harm=0.01,
    costs="The steps after it: the loss jumps by a factor of a hundred or more; thirty steps later accuracy is still "
    "two to three points lower on digits, twelve on photographs.",
    symptom="A smoothly falling loss jumps within one step, peaks a few steps later, and recovers slowly or not "
    "completely.",
    mechanism="The gradient of a sample grows with its size. One image out of 128 that is 300 times too large "
    "dominates the gradient of the batch, and the step is just as large.",
    formula=r"\nabla L = \frac{1}{N} \sum_i g_i, \qquad \lVert g_1 \rVert \gg \sum_{i > 1} \lVert g_i \rVert",
    first_check="Gradient norm and largest input at the step of the jump; then look at the images of that batch.",
    remedy="Check ranges when you load the data. Clipping the gradient norm limits the effect of any such batch, and "
    "skipping steps with an extreme gradient drops it. Find the sample anyway.",
    reference="Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks (2013)",
    looks="jumps",
    shows="grad_norm_total",
    where=("batch {departure}",),
    knobs=(
        Knob("clip", (None, 1.0)),
        Knob("momentum", (0.0, 0.9)),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("batch_size", (32, 512), log=True),
    ),
)
