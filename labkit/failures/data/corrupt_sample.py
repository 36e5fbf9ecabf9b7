"""One image of one batch, 300 times too bright and wrongly labelled: one step that undoes a hundred."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.failures.signs import blows
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of a batch's samples that lie far outside; one of 128 is 0.8 %, a batch that is corrupt as a whole 100 %.
A_FEW = 0.5

STEP, FACTOR = 270, 300
healthy = Recipe(momentum=0.0, steps=300)


def one_corrupt_sample(split, recipe, generator):
    """The usual batches; at STEP the first image is FACTOR times too large and has its neighbour's label."""
    for step, (x, y) in enumerate(shuffled(split, recipe, generator)):
        if step == STEP:
            x, y = x.clone(), y.clone()
            x[0] *= FACTOR
            y[0] = (y[0] + 1) % 10
        yield x, y


sick = healthy.but(batches=one_corrupt_sample)


def signature(run: Run) -> Evidence | None:
    found = [blow for blow in blows(run) if blow.is_hard and blow.outliers <= A_FEW]
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
    title="A corrupt sample",
    healthy=healthy,
    sick=sick,
    cures={
        "clipping the gradient norm to 1": sick.but(clip=1.0),
        "skipping a step whose gradient is ten times the usual": sick.but(step="skipping_step"),
    },
    false_cures={
        "momentum 0.9, to average it away: 84 %": sick.but(momentum=0.9),
        "a third of the learning rate: 88 %": sick.but(lr=0.03),
    },
    signature=signature,
    harm=0.01,
    costs="The steps after it: the loss jumps by a factor of a hundred and more; thirty steps later digits are still "
    "two to three points short, photographs twelve.",
    symptom="A loss that was falling smoothly jumps within one step, is worst a few steps later, and comes back slowly "
    "or not quite.",
    mechanism="The gradient of a sample grows with its size. One image out of 128 that is 300 times too large "
    "outvotes all the others, and the step is as long as its gradient.",
    first_check="Gradient norm and largest input at the step of the jump; then look at the images of that batch.",
    remedy="Check ranges when data are read. Clipping the gradient norm takes the force out of any such batch, and "
    "skipping steps with an extreme gradient drops it; find the sample all the same.",
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
