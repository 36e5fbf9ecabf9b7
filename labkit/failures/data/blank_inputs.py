"""Every image arrives as zeros: the net can learn how frequent each class is, and nothing else."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.failures.signs import chance_loss, input_deviation, late_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Standard deviation of all pixels of a usual batch. Healthy: 1, or 0.3 for pixels from 0 to 1; blank images: 0.
FLAT = 1e-4
NOTHING_LEARNED = 0.9  # late batch loss over that of chance; blank images give 1.0, healthy photographs 0.6 to 0.7

healthy = Recipe(momentum=0.0, steps=300)


def blank(split, recipe, generator):
    """The usual batches with every pixel multiplied by 0: a mask that was the wrong way round."""
    for x, y in shuffled(split, recipe, generator):
        yield x * 0, y


sick = healthy.but(batches=blank)


def signature(run: Run) -> Evidence | None:
    width, loss = input_deviation(run), late_loss(run)
    if not (width < FLAT and loss > NOTHING_LEARNED * chance_loss(run)):
        return None
    return Evidence(
        seen=f"all pixels of a batch have the same value (standard deviation {width:.1g}), and the loss is {loss:.3f}",
        usual="a standard deviation of 0.3 to 1",
        onset=0,
        place="inputs",
        confidence=0.98,
    )


failure = FailureMode(
    title="Blank inputs",
    healthy=healthy,
    sick=sick,
    cures={"images that reach the net": sick.but(batches="shuffled")},
    false_cures={
        "a larger net: there is nothing for it to see": sick.but(width=512),
        "Adam": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.85,
    symptom="The loss sits at chance level from the first step, on the training set too.",
    mechanism="With nothing but zeros in front of it only the biases matter, and they can say no more than how "
    "frequent each class is. The weights of the first layer get no gradient at all.",
    first_check="One batch just before it enters the net: its largest value, its standard deviation, a picture.",
    remedy="Find what blanks the images: a mask the wrong way round, a second division by 255 of whole numbers, "
    "a failed decode that returns zeros.",
    reference="Karpathy, A Recipe for Training Neural Networks (2019), on the input-independent baseline",
    looks="never moves",
    shows="activation_std",
    knobs=(
        Knob("lr", (1e-3, 0.3), log=True),
        Knob("width", (8, 512), log=True),
    ),
)
