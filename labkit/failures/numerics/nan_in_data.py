"""One NaN in one pixel of one image: the step that draws it turns every weight of the net into NaN."""

import torch

from labkit.training import parts
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of the worst sample's entries that are not finite: 1 of 784 pixels here. A sample that is spoiled as a whole
# comes from a computation (see zero_by_zero), not from a value that was missing in the data.
WHOLE = 0.99
VICTIM = 1234  # the image with the hole; any other would do


def with_a_hole(split):
    """The same images, but for one pixel in the middle of one of them, which is NaN as a missing value would be."""
    x = split.x.clone()
    middle = x.shape[-1] // 2
    x[min(VICTIM, len(x) - 1), 0, middle, middle] = float("nan")
    return split._replace(x=x)


def one_missing_pixel(split, recipe, generator):
    """Shuffled batches of images one of which has a missing value, read as NaN."""
    return parts.shuffled(with_a_hole(split), recipe, generator)


def incomplete_images_left_out(split, recipe, generator):
    """The same, after a look through the data: what is not finite throughout is not used."""
    split = with_a_hole(split)
    complete = torch.isfinite(split.x).flatten(1).all(1)
    return parts.shuffled(split._replace(x=split.x[complete], y=split.y[complete]), recipe, generator)


def step_unless_not_finite(training, x, y) -> None:
    """A step that looks at its loss and leaves the weights alone when it is not finite."""
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
        "and the weights were still in order",
        usual="0 such values: the data are looked through before training",
        onset=origin["step"],
        place=where,
        confidence=0.97,
    )


failure = FailureMode(
    title="NaN in the data",
    healthy=healthy,
    sick=sick,
    cures={
        "images that are not finite throughout left out": sick.but(batches=incomplete_images_left_out),
        "a step with a non-finite loss skipped": sick.but(step=step_unless_not_finite),
    },
    false_cures={
        "clipping the gradient norm to 1: the norm is NaN, and so is what is divided by it": sick.but(clip=1.0),
        "a tenth of the learning rate": sick.but(lr=0.01),
        "batch normalisation: now the whole batch is NaN": sick.but(normalisation="batch"),
    },
    signature=signature,
    harm=0.9,
    symptom="Training runs well, and from one step to the next everything is NaN; with another seed it happens at "
    "another step. The accuracy falls to that of always answering 0.",
    mechanism="A NaN goes through every layer into the loss, and from the loss into the gradient of every weight. One "
    "pixel among eight million is enough, at the step that draws it.",
    first_check="torch.isfinite(x).all() on the whole data set; then on the very batch at which it happened.",
    remedy="Look through the data once and leave out or fill in what is not finite. In the loop, skip a step whose "
    "loss is not finite, and count how often. Clipping does not help.",
    reference="Kim et al., A taxonomy of dirty data (2003), on missing values; IEEE 754 (2019) on how NaN spreads",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("seed", (0, 9)),
        Knob("batch_size", (32, 512), log=True),
        Knob("clip", (None, 1.0)),
    ),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
