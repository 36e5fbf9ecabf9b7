"""Every image arrives as zeros: the net can learn the class frequencies, and nothing else."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, input_deviation, late_loss
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Standard deviation of all pixels in a typical batch. Healthy: 1, or 0.3 for pixels from 0 to 1; blank images: 0.
# Inputs that were scaled down twice have 1e-5 to 1e-3, and are another failure.
FLAT = 1e-7
NOTHING_LEARNED = 0.9  # late batch loss over chance level; blank images give 1.0, healthy photographs 0.6 to 0.7

healthy = Recipe(steps=300)


def blank(split, recipe, generator):
    """The usual batches with every pixel multiplied by 0, as by an inverted mask."""
    for x, y in shuffled(split, recipe, generator):
        yield x * 0, y


sick = healthy.but(batches=blank)


def signature(run: Run) -> Evidence | None:
    width, loss = input_deviation(run), late_loss(run)
    chance = chance_loss(run)
    nothing = run["loss"][0] if np.isnan(chance) else chance  # the first loss, where no better measure is known
    learned = loss < NOTHING_LEARNED * nothing and not left_over(run) > NOTHING_LEARNED
    if not width < FLAT or learned:
        return None
    return Evidence(
        seen=f"all pixels of a batch have the same value (standard deviation {width:.1g}), and the loss is {loss:.3f}",
        usual="a standard deviation of 0.3 to 1",
        onset=0,
        place="inputs",
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Blank inputs",
    cures={"images that are not masked": sick.but(batches="shuffled")},
    false_cures={
        "a larger net: the images are still blank": sick.but(width=512),
        "Adam": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.85,
    symptom="The loss stays at chance level from the first step, on the training set too.",
    mechanism="With only zeros as input, only the biases matter, and they can only learn the class frequencies. The "
    "weights of the first layer receive no gradient at all.",
    formula=r"x = 0 \quad \Rightarrow \quad \frac{\partial L}{\partial W_1} = \delta \, x^\top = 0",
    first_check="One batch just before it enters the net: its largest value, its standard deviation, a plot.",
    remedy="Find what blanks the images: an inverted mask, a second division of integers by 255, a failed decode that "
    "returns zeros.",
    reference="Karpathy, A Recipe for Training Neural Networks (2019), on the input-independent baseline",
    looks="never moves",
    shows="activation_std",
    knobs=(
        Knob("lr", (1e-3, 0.3), log=True),
        Knob("width", (8, 512), log=True),
    ),
)
