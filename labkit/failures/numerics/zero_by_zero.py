"""Each image divided by its own standard deviation, and one is blank: 0 divided by 0, and the whole net is NaN."""

from collections import OrderedDict

from torch import nn

from labkit.training import models
from labkit.training import parts
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# How far apart the values are that a module spoiled. A blank image has 0 exactly; anything else that a
# division by its spread could meet is larger.
CONSTANT = 1e-6
WHOLE = (
    0.99  # share of the sample that is spoiled: a mean or a spread of 0 takes all of it, a missing pixel only its own
)
BLANK = 1234  # the image that is blank; any other would do


class Standardise(nn.Module):
    """Each image with mean 0 and standard deviation 1, by itself."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        flat = x.flatten(1)
        return (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + self.eps)


def standardised_without_eps(recipe, data):
    """A perceptron behind a standardisation that trusts every image to have some contrast."""
    return nn.Sequential(OrderedDict(standardise=Standardise(0.0), net=models.mlp(recipe, data)))


def standardised(recipe, data):
    """The same with a small constant in the divisor."""
    return nn.Sequential(OrderedDict(standardise=Standardise(1e-5), net=models.mlp(recipe, data)))


def one_blank_image(split, recipe, generator):
    """Shuffled batches of images, one of which is blank, as a file that was cut short would be."""
    x = split.x.clone()
    x[min(BLANK, len(x) - 1)] = 0.0
    return parts.shuffled(split._replace(x=x), recipe, generator)


def blank_images_left_out(split, recipe, generator):
    """The same, with images of no contrast at all taken out first."""
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
    given = f"{origin['place']} was given an image whose values differ by {origin['spread']:.1g}" if inside else ""
    return Evidence(
        seen=f"all {origin['count']} values of {len(samples)} sample(s) are not finite at step {origin['step']}"
        + (f": {given}" if inside else " as they come from the loader"),
        usual="values that differ by 1 or more within an image, and 0 NaN",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.95 if inside else 0.7,
    )


failure = FailureMode(
    title="Zero divided by zero",
    healthy=healthy,
    sick=sick,
    cures={
        "a small constant in the divisor": sick.but(model=standardised),
        "blank images left out": sick.but(batches=blank_images_left_out),
    },
    false_cures={
        "clipping the gradient norm to 1": sick.but(clip=1.0),
        "a tenth of the learning rate": sick.but(lr=0.01),
    },
    signature=signature,
    harm=0.9,
    symptom="Training runs well until one step turns everything into NaN. The inputs of that batch are finite, all of "
    "them; it is the first computation behind them that is not.",
    mechanism="A blank image has a standard deviation of 0, and so has its difference from the mean: 0 / 0 is NaN, and "
    "where rounding leaves a little above the line, infinity. One among 10,000 is enough, at the step that draws it.",
    first_check="The batch at which it happened: look for a sample without contrast, an empty row, a mask of zeros.",
    remedy="A small constant in every divisor that data can make 0, 1e-5 here; in 16 bits not below 1e-4. And look at "
    "what the blank sample is doing in the data.",
    reference="Goldberg, What Every Computer Scientist Should Know About Floating-Point Arithmetic (1991)",
    looks="not finite",
    shows="origin",
    where=("standardise",),
    knobs=(Knob("seed", (0, 9)), Knob("batch_size", (32, 512), log=True), Knob("clip", (None, 1.0))),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
