"""Training images are normalised, validation images are not: the loss explodes, and the accuracy hides it."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import input_deviation
from labkit.training.parts import plain_evaluate
from labkit.training.recipe import Recipe

# Standard deviation of the validation inputs over that of the training inputs, or the other way round.
# Healthy: 1.00 to 1.02, with random rotations 1.06; raw pixels: 65 to 80.
STRETCHED = 1.5
# Validation loss minus the loss on training images, in nats. Healthy: 0.0 to 0.5; raw pixels: 15 to 210.
GAP = 0.6
TIMES = 2.0  # and their ratio: if training images are just as bad, the scale is not the problem

healthy = Recipe(steps=300)


def evaluate_raw(training, split) -> dict:
    """The plain evaluation, on images that were loaded again without normalisation."""
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
        f"validation loss is {run['val_loss'][-1]:.2g}, the loss on training images {run['probe_loss'][-1]:.2g}",
        usual="the same within 10 %",
        onset=0,
        place="validation set",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Validation scaled differently",
    cures={"validation images scaled like the training images": sick.but(evaluate="plain_evaluate")},
    false_cures={
        "weight decay 0.01: the loss stays at 16": sick.but(weight_decay=0.01),
        "dropout 0.5, as if the net were overfitting": sick.but(dropout=0.5),
    },
    harm=0.01,
    costs="The validation loss: 16 to 19 instead of 0.3, so early stopping and all else based on the loss fails. The "
    "accuracy falls by only three to five points on digits; on photographs, without a black background, to 19 %.",
    symptom="The validation loss is in the tens, although the validation accuracy looks almost normal.",
    mechanism="Inputs a hundred times larger give a ReLU net outputs about a hundred times larger: the same ranking, "
    "so nearly the same accuracy, but extreme confidence, so every mistake costs tens of nats. If the mean is off "
    "too, as with photographs, the ranking changes as well.",
    formula=r"f(c x) \approx c f(x), \qquad \mathrm{argmax} \, f(c x) = \mathrm{argmax} \, f(x)",
    first_check="Mean and standard deviation of one training batch and of one validation batch, side by side.",
    remedy="Scale in one function that both loaders call, with the statistics of the training set. Save the scaling "
    "together with the net.",
    reference="Breck et al., Data Validation for Machine Learning (2019), on training-serving skew",
    looks="validation worse",
    shows="val_loss",
    knobs=(
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("activation", ("relu", "tanh", "sigmoid")),
        Knob("weight_decay", (0.0, 0.1)),
    ),
)
