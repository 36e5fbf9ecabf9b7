"""One NaN in one pixel of one image: the step that uses it turns every weight of the net into NaN."""

import torch

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import parts
from labkit.training.recipe import Recipe

# Share of the worst sample's entries that are not finite: 1 of 784 pixels here. If the whole sample is not
# finite, it comes from a computation (see zero_by_zero), not from a missing value in the data.
WHOLE = 0.99
INCOMPLETE = 1234  # the image with the missing pixel; any other would do


def with_missing_pixel(split):
    """The same images, but one pixel in the middle of one of them is NaN, like a missing value."""
    x = split.x.clone()
    middle = x.shape[-1] // 2
    x[min(INCOMPLETE, len(x) - 1), 0, middle, middle] = float("nan")
    return split._replace(x=x)


def one_missing_pixel(split, recipe, generator):
    """Shuffled batches of images; one image has a missing value, read as NaN."""
    return parts.shuffled(with_missing_pixel(split), recipe, generator)


def incomplete_images_dropped(split, recipe, generator):
    """The same without the images that have non-finite values."""
    split = with_missing_pixel(split)
    complete = torch.isfinite(split.x).flatten(1).all(1)
    return parts.shuffled(split._replace(x=split.x[complete], y=split.y[complete]), recipe, generator)


def step_if_loss_is_finite(training, x, y) -> None:
    """A step that does not update the weights if the loss is not finite."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)
    if torch.isfinite(loss):
        training.update()


healthy = Recipe()
sick = healthy.but(batches=one_missing_pixel)


def signature(run: Run) -> Evidence | None:
    origin = run.facts.get("first_nonfinite") or {}
    share = origin.get("share", 0.0)
    if origin.get("stage") != "inputs" or share > WHOLE:
        return None
    samples = origin.get("samples", ())
    where = (
        f"sample {samples[0]} of the batch" if len(samples) == 1 else f"{len(samples) or 'some'} samples of the batch"
    )
    return Evidence(
        seen=f"{origin.get('count', 'some')} input values are not finite at step {origin['step']}, in {where}, "
        "while the weights were still finite",
        usual="0 such values: check the data before training",
        onset=origin["step"],
        place=where,
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="NaN in the data",
    cures={
        "images with non-finite values dropped": sick.but(batches=incomplete_images_dropped),
        "steps with a non-finite loss skipped": sick.but(step=step_if_loss_is_finite),
    },
    false_cures={
        "clipping the gradient norm to 1: the norm is NaN, and so is anything divided by it": sick.but(clip=1.0),
        "a tenth of the learning rate": sick.but(lr=0.01),
        "batch normalisation: now the whole batch is NaN": sick.but(normalisation="batch"),
    },
    harm=0.9,
    symptom="Training runs well, and from one step to the next everything is NaN; with another seed it happens at "
    "another step. The accuracy falls to that of always predicting 0.",
    mechanism="A NaN passes through every layer into the loss, and from the loss into the gradient of every weight. "
    "One pixel in eight million is enough, at the step that uses it.",
    formula=r"\mathrm{NaN} + x = \mathrm{NaN}",
    first_check="torch.isfinite(x).all() on the whole data set, then on the first batch that failed.",
    remedy="Check the data once, and drop or fill in non-finite values. In the loop, skip steps whose loss is not "
    "finite, and count them. Clipping does not help.",
    reference="Kim et al., A taxonomy of dirty data (2003), on missing values; IEEE 754 (2019) on how NaN spreads",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("seed", (0, 9)),
        Knob("batch_size", (32, 512), log=True),
        Knob("clip", (None, 1.0)),
    ),
    classic=ClassicCurve(11, "ends in NaN"),
)
