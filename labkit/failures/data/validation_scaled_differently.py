"""Training images are normalised, validation images are not: the loss explodes, and the accuracy hides it."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import plain_evaluate
from labkit.failures.signs import input_deviation
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Standard deviation of the validation inputs over that of the training inputs, or the other way round.
# Healthy: 1.00 to 1.02, with random rotations 1.06; raw pixels: 65 to 80.
STRETCHED = 1.5
# Validation loss minus the loss on training images, in nats. Healthy: 0.0 to 0.5; raw pixels: 15 to 210.
GAP = 0.6
TIMES = 2.0  # and the one over the other: where training images do as badly, the scale is not what is wrong

healthy = Recipe(momentum=0.0, steps=300)


def evaluate_raw(training, split) -> dict:
    """The plain evaluation, of images that were loaded once more and never normalised."""
    raw = training.recipe.data(training.recipe.but(inputs="raw", device=training.device.type)).val
    return plain_evaluate(training, raw._replace(x=raw.x.to(split.x.dtype)))


sick = healthy.but(evaluate=evaluate_raw)


def signature(run: Run) -> Evidence | None:
    trained, validated = input_deviation(run), float(run["val_input_std"][-1])
    with np.errstate(all="ignore"):
        ratio, gap = np.divide(max(trained, validated), min(trained, validated)), run.gap[-1]
    if not (
        min(trained, validated) > 0
        and STRETCHED < ratio < np.inf
        and gap > max(GAP, (TIMES - 1) * run["probe_loss"][-1])
    ):
        return None
    return Evidence(
        seen=f"validation inputs with standard deviation {validated:.3g}, training inputs with {trained:.3g}; the "
        f"validation loss is {run['val_loss'][-1]:.2g}, that of training images {run['probe_loss'][-1]:.2g}",
        usual="the same within 10 %",
        onset=0,
        place="validation set",
        confidence=0.95,
    )


failure = FailureMode(
    title="Validation scaled differently",
    healthy=healthy,
    sick=sick,
    cures={"validation images scaled as the training images are": sick.but(evaluate="plain_evaluate")},
    false_cures={
        "weight decay 0.01: the loss stays at 16": sick.but(weight_decay=0.01),
        "dropout 0.5, as against overfitting": sick.but(dropout=0.5),
    },
    signature=signature,
    harm=0.01,
    costs="The validation loss: 16 to 19 where it should be 0.3, so early stopping and all that goes by the loss "
    "fail. The accuracy on digits falls by three to five points only; photographs, with no black ground, go to 19 %.",
    symptom="The validation loss is in the tens, although the validation accuracy looks almost right.",
    mechanism="A ReLU net answers an input a hundred times larger with outputs about a hundred times larger: the same "
    "order, so nearly the same accuracy, but boundless confidence, so every mistake costs tens of nats. Where the mean "
    "is off as well, as with photographs, the order goes too.",
    first_check="Mean and standard deviation of one training batch and of one validation batch, side by side.",
    remedy="Scale once, in one function that both loaders call, with the numbers of the training set. What is saved "
    "with the net is its scaling too.",
    reference="Breck et al., Data Validation for Machine Learning (2019), on training-serving skew",
    looks="validation worse",
    shows="val_loss",
    knobs=(
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("activation", ("relu", "tanh", "sigmoid")),
        Knob("weight_decay", (0.0, 0.1)),
    ),
)
