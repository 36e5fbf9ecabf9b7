"""A whole batch read from the wrong place in the file: pixels a hundred times too large, labels of other images."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.failures.signs import blows
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of a batch's samples that lie far outside; one corrupt image of 128 is 0.8 %, a corrupt batch 100 %.
MOST = 0.5

STEP, FACTOR = 270, 100
healthy = Recipe(momentum=0.0, steps=300)


def one_corrupt_batch(split, recipe, generator):
    """The usual batches; the one at STEP is FACTOR times too large, and its labels are one place off."""
    for step, (x, y) in enumerate(shuffled(split, recipe, generator)):
        yield (x * FACTOR, y.roll(1)) if step == STEP else (x, y)


sick = healthy.but(batches=one_corrupt_batch)


def signature(run: Run) -> Evidence | None:
    found = [blow for blow in blows(run) if blow.is_hard and blow.outliers > MOST]
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
    title="A corrupt batch",
    healthy=healthy,
    sick=sick,
    cures={
        "clipping the gradient norm to 1": sick.but(clip=1.0),
        "skipping a step whose gradient is ten times the usual": sick.but(step="skipping_step"),
    },
    false_cures={
        "momentum 0.9, to average it away: 42 %": sick.but(momentum=0.9),
        "a third of the learning rate: 69 %": sick.but(lr=0.03),
    },
    signature=signature,
    harm=0.1,
    symptom="Out of nothing the loss jumps by orders of magnitude at one step, and the net does not find back.",
    mechanism="The gradient grows with the inputs and with how wrong the labels are; here both are wrong for all 128 "
    "images at once. One step throws the weights far away and leaves units dead.",
    first_check="Gradient norm and largest input at the step of the jump: if both jump together, look at that batch.",
    remedy="Clip the gradient norm, or skip steps whose gradient is ten times the usual, so that one batch cannot do "
    "more than one batch's harm. Then find out which file it came from.",
    reference="Chowdhery et al., PaLM: Scaling Language Modeling with Pathways (2022), section 5.1, on loss spikes",
    looks="jumps",
    shows="grad_norm_total",
    where=("batch {departure}",),
    knobs=(
        Knob("clip", (None, 1.0)),
        Knob("momentum", (0.0, 0.9)),
        Knob("lr", (0.01, 0.3), log=True),
    ),
)
