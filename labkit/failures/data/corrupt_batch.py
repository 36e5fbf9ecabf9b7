"""A whole batch read from the wrong offset in the file: pixels 100 times too large, labels of other images."""

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import outlier_batches
from labkit.recording.run import Run
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of a batch's samples that are outliers; one corrupt image of 128 is 0.8 %, a corrupt batch 100 %.
MOST = 0.5

STEP, FACTOR = 270, 100
healthy = Recipe(steps=300)


def one_corrupt_batch(split, recipe, generator):
    """The usual batches; the one at STEP is FACTOR times too large, and its labels are shifted by one."""
    for step, (x, y) in enumerate(shuffled(split, recipe, generator)):
        yield (x * FACTOR, y.roll(1)) if step == STEP else (x, y)


sick = healthy.but(batches=one_corrupt_batch)


def signature(run: Run) -> Evidence | None:
    found = [one for one in outlier_batches(run) if one.is_harmful and one.outliers > MOST]
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
    title="Corrupt batch",
    cures={
        "clipping the gradient norm to 1": sick.but(clip=1.0),
        "skipping steps whose gradient is ten times the usual": sick.but(step="skipping_step"),
    },
    false_cures={
        "momentum 0.9, to average it away: 42 %": sick.but(momentum=0.9),
        "a third of the learning rate: 69 %": sick.but(lr=0.03),
    },
    harm=0.1,
    symptom="The loss suddenly jumps by orders of magnitude at one step, and the net does not recover.",
    mechanism="The gradient grows with the inputs and with the error of the predictions; here both are large for all "
    "128 images at once. One step moves the weights far away and leaves units dead.",
    formula=r"\lVert \nabla L \rVert \propto \lVert x \rVert \, \lVert \hat{y} - y \rVert",
    first_check="Gradient norm and largest input at the step of the jump: if both jump together, inspect that batch.",
    remedy="Clip the gradient norm, or skip steps whose gradient is ten times the usual, so that one batch can only "
    "do limited harm. Then find the file it came from.",
    reference="Chowdhery et al., PaLM: Scaling Language Modeling with Pathways (2022), section 5.1, on loss spikes",
    looks="jumps",
    shows="grad_norm_total",
    where=("batch {departure}",),
    knobs=(
        Knob("clip", (None, 1.0)),
        Knob("momentum", (0.0, 0.9)),
        Knob("lr", (0.01, 0.3), log=True),
    ),
    classic=ClassicCurve(5, "spikes"),
)
