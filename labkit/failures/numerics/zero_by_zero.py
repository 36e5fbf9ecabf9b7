"""Each image divided by its own standard deviation, and one is blank: 0 divided by 0, and the whole net is NaN."""

from collections import OrderedDict

from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import models, parts
from labkit.training.recipe import Recipe

# Range of the values that a module turned into NaN. A blank image has exactly 0; any other input has more.
CONSTANT = 1e-6
# Share of the sample that is not finite: a standard deviation of 0 affects all of it, a missing pixel only itself.
WHOLE = 0.99
BLANK = 1234  # the image that is blank; any other would do


class Standardise(nn.Module):
    """Scale each image to mean 0 and standard deviation 1."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        flat = x.flatten(1)
        return (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + self.eps)


def standardised_without_eps(recipe, data):
    """A perceptron after a standardisation that assumes that every image has some contrast."""
    return nn.Sequential(OrderedDict(standardise=Standardise(0.0), net=models.mlp(recipe, data)))


def standardised(recipe, data):
    """The same with a small constant in the divisor."""
    return nn.Sequential(OrderedDict(standardise=Standardise(1e-5), net=models.mlp(recipe, data)))


def one_blank_image(split, recipe, generator):
    """Shuffled batches of images, one of which is blank, as from a truncated file."""
    x = split.x.clone()
    x[min(BLANK, len(x) - 1)] = 0.0
    return parts.shuffled(split._replace(x=x), recipe, generator)


def blank_images_dropped(split, recipe, generator):
    """The same without images that have no contrast."""
    flat = split.x.flatten(1).clone()
    flat[min(BLANK, len(flat) - 1)] = 0.0
    some = flat.amax(1) > flat.amin(1)
    return parts.shuffled(split._replace(x=split.x[some], y=split.y[some]), recipe, generator)


healthy = Recipe(model=standardised, batches=one_blank_image)
sick = healthy.but(model=standardised_without_eps)


def signature(run: Run) -> Evidence | None:
    origin = run.facts.get("first_nonfinite") or {}
    if origin.get("share", 0.0) < WHOLE:
        return None
    inside = origin.get("stage") == "activations" and origin.get("spread", 1.0) <= CONSTANT
    if not inside and origin.get("stage") != "inputs":
        return None
    samples = origin.get("samples", ())
    given = f"{origin['place']} received an image whose values differ by {origin['spread']:.1g}" if inside else ""
    return Evidence(
        seen=f"all {origin['count']} values of {len(samples)} sample(s) are not finite at step {origin['step']}"
        + (f": {given}" if inside else " as they come from the data loader"),
        usual="values that differ by 1 or more within an image, and 0 NaN",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.95 if inside else 0.7,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Zero divided by zero",
    cures={
        "a small constant in the divisor": sick.but(model=standardised),
        "blank images dropped": sick.but(batches=blank_images_dropped),
    },
    false_cures={
        "clipping the gradient norm to 1": sick.but(clip=1.0),
        "a tenth of the learning rate": sick.but(lr=0.01),
    },
    harm=0.9,
    symptom="Training runs well until one step turns everything into NaN. All inputs of that batch are finite; the "
    "output of the first module is not.",
    mechanism="A blank image has a standard deviation of 0, and equals its mean: 0 / 0 is NaN, or infinity if rounding "
    "leaves a small numerator. One image in 10,000 is enough, at the step that uses it.",
    formula=r"\frac{x - \mu}{\sigma} = \frac{0}{0} = \mathrm{NaN}",
    first_check="The first batch that failed: look for a sample without contrast, an empty row, a mask of zeros.",
    remedy="Add a small constant to every divisor that data can make 0: here 1e-5, in 16 bits at least 1e-4. Then find "
    "out why there is a blank sample in the data.",
    reference="Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic (1991)",
    looks="not finite",
    shows="origin",
    where=("standardise",),
    knobs=(Knob("seed", (0, 9)), Knob("batch_size", (32, 512), log=True), Knob("clip", (None, 1.0))),
)
