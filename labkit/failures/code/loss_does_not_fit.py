"""Absolute error against one-hot labels: most targets are 0, so the net soon predicts 0 for every class."""

import math

import numpy as np
from torch.nn.functional import l1_loss, one_hot

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, tested
from labkit.recording.run import Run
from labkit.recording.summaries import late_loss
from labkit.training.recipe import Recipe

# Measured on MNIST and CIFAR-10 and, through `watch`, on 20 and 50 classes of Gaussian clusters.
FEWEST = 3  # classes: with two, the median of the targets is not 0, and absolute error learns
EARLY = 5  # steps: each loss over the absolute error that is expected of its outputs, and of these the median.
CLOSE = 0.2  # It is 0.86 to 1.08 with this loss; squared error: 0.3 to 0.6 or 1.9 to 2.4; cross-entropy: 1.4 and more.
# Loss times classes at the end. Predicting about 0 for every class: 0.9 to 1.3; a net that fits its labels:
# 0.05 to 0.5.
HIGH, ZERO = 0.6, 1.4
# Mean output times classes, at the end. Collapsed: 0 to 0.3. One-hot labels have a mean of 1 / classes, and so have
# outputs that fit them: 0.9 to 1.05 with the squared error.
LOW = 0.5
# The loss at the end over the absolute error that is expected of its outputs. Collapsed: 0.46 to 1. Cross-entropy with
# He init can begin at the absolute error of its outputs by chance, but ends at 0.02 to 0.05 of it.
LEAST = 0.2
# How far the loss at the end is below that of perfect outputs, over the loss of a constant prediction. Squared error of
# class numbers 0.9 to 1.4, cross-entropy for numbers 20 and more; healthy small programs of every task are above it, or
# at most 0.24 below (a ranking, whose targets are no outputs).
BELOW = 0.6
# The first loss over the mean absolute error of equal probabilities, and what is left of that of a constant prediction:
# 1.00 and 0.9 in a program of 20 classes; cross-entropy starts at ln(classes), 16 to 30 times that.
EVEN, LEFT = 0.1, 0.47
# Minus the loss of the best constant prediction over the first loss: 1e15 and more where a likelihood gets what is no
# logarithm of a probability; the loss is below 0 then, which that of classes never is.
BOTTOMLESS = 1e6
EQUAL = 0.01  # difference over the same, of the losses of perfect outputs for their own targets and for others

healthy = Recipe(optimizer="adam", lr=0.003, steps=300)


def absolute_error(outputs, targets):
    """Absolute distance to the one-hot label, averaged."""
    return l1_loss(outputs, one_hot(targets, outputs.shape[1]).to(outputs.dtype))


sick = healthy.but(loss=absolute_error)


def expected_absolute_error(mean: float, deviation: float, classes: int) -> float:
    """Of normally distributed outputs against one-hot labels that they do not depend on yet."""
    return ((classes - 1) * mean_distance(mean, deviation) + mean_distance(mean - 1, deviation)) / classes


def mean_distance(mean: float, deviation: float) -> float:
    """The mean absolute value of a normal distribution."""
    ratio = mean / max(deviation, 1e-30)
    density = math.sqrt(2 / math.pi) * math.exp(-min(ratio**2, 1400) / 2)
    return deviation * density + mean * math.erf(ratio / math.sqrt(2))


def beats_the_truth(run: Run) -> Evidence | None:
    """For any task: the net has found outputs that the loss rates far better than perfect ones."""
    tests, constant = tested(run), run.facts.get("constant_loss", np.nan)
    truth, swapped, loss = (tests.get(name, np.nan) for name in ("truth", "swapped", "loss"))
    unit = constant if constant > 0 else abs(swapped - truth)
    if truth > swapped + unit * CLOSE or not truth - loss > BELOW * unit:  # a flipped sign is another failure
        return None
    if abs(truth - swapped) < unit * EQUAL and run.facts.get("task") in ("numbers", "yes or no"):
        return None  # every output is compared with every target: shapes that broadcast
    return Evidence(
        seen=f"perfect outputs would have a loss of {truth:.3g}, those of the net have {loss:.3g}; for targets of "
        f"other samples it is {swapped:.3g}",
        usual="a loss that is lowest for perfect outputs",
        onset=0,
        place="loss",
        confidence=0.95,
    )


def has_no_lowest_value(run: Run) -> Evidence | None:
    """A likelihood of classes whose outputs are probabilities or logits, and not their logarithms."""
    tests, constant = tested(run), run.facts.get("constant_loss", np.nan)
    truth, swapped, late = tests.get("truth", np.nan), tests.get("swapped", np.nan), late_loss(run)
    if run.facts.get("task") not in ("classes", "tokens", "pixels") or not late < 0 or not truth < swapped:
        return None
    if not -constant > BOTTOMLESS * abs(run["loss"][0]):
        return None
    return Evidence(
        seen=f"the loss of classes fell to {late:.3g}, below 0, and it has no lowest value: a constant prediction "
        f"reaches {constant:.1g}",
        usual="a loss of classes of 0 or more: nll_loss wants the logarithms of probabilities",
        onset=0,
        place="loss",
        confidence=0.95,
    )


def signature(run: Run) -> Evidence | None:
    return beats_the_truth(run) or has_no_lowest_value(run) or of_probabilities(run) or predicts_zero(run)


def of_probabilities(run: Run) -> Evidence | None:
    """Absolute error between a softmax and one-hot classes: its gradient fades where the net is wrong."""
    classes, first, left = run.facts.get("classes") or 0, float(run["loss"][0]), left_over(run)
    if classes < FEWEST or run.facts.get("task") != "classes" or not left > LEFT:
        return None
    even = 2 * (classes - 1) / classes**2  # of equal probabilities: 1 - 1/K for the class, 1/K for each other one
    if abs(first / even - 1) > EVEN:
        return None
    return Evidence(
        seen=f"the first loss is {first:.3g}; the mean absolute error of {classes} equal probabilities is {even:.3g}, "
        f"and {left:.2f} of the loss of a constant prediction is left",
        usual=f"cross-entropy, which starts near ln({classes}) = {math.log(classes):.2f}",
        onset=0,
        place="loss",
        confidence=0.9,
    )


def predicts_zero(run: Run) -> Evidence | None:
    """Absolute error of one-hot classes: does the net predict 0 for every class?"""
    classes, losses, late = run.facts.get("classes") or 0, run["loss"], late_loss(run)
    means, deviations = run["activation_mean"][:, -1], run["activation_std"][:, -1]
    if classes < FEWEST or not np.isfinite([late, *losses[:EARLY], *means, *deviations[:EARLY]]).all():
        return None
    early = zip(losses[:EARLY], means[:EARLY], deviations[:EARLY], strict=True)
    first = float(np.median([loss / expected_absolute_error(mean, size, classes) for loss, mean, size in early]))
    mean, deviation = (float(np.median(each[-max(1, len(means) // 4) :])) for each in (means, deviations))
    if abs(first - 1) > CLOSE or not HIGH < late * classes < ZERO or abs(mean * classes) > LOW:
        return None
    if late < LEAST * expected_absolute_error(mean, deviation, classes):
        return None
    return Evidence(
        seen=f"the loss starts at {losses[0]:.3f}, the mean absolute error of the outputs against one-hot labels, "
        f"and ends at {late:.3f} with a mean output of {mean:.3f}; predicting 0 for all {classes} classes "
        f"gives {1 / classes:.3f}",
        usual=f"cross-entropy, which starts near ln({classes}) = {math.log(classes):.2f}",
        onset=0,
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Loss that does not fit",
    cures={"cross-entropy": sick.but(loss="cross_entropy")},
    false_cures={
        "ten times the learning rate: 9 to 11 %": sick.but(lr=0.03),
        "three times as many steps: 8 to 17 %": sick.but(steps=900),
        "four times as many hidden units: 11 to 20 %": sick.but(width=512),
        "plain SGD: 50 to 62 %": sick.but(optimizer="sgd", lr=0.1),
    },
    harm=0.7,
    symptom="The loss falls within a few steps and then stays near 0.1, which looks small. The accuracy is at chance "
    "or little above.",
    mechanism="Absolute error is minimised by the median. For each class nine of ten one-hot targets are 0, so their "
    "median is 0, and the gradient of the nine zeros outvotes the single 1 in almost every batch. Predicting 0 for all "
    "ten classes has a loss of 1 / 10, whatever the image.",
    formula=r"\mathrm{argmin}_c \sum_i |y_i - c| = \mathrm{median}(y) = 0",
    first_check="The loss of the best constant prediction, here 0.1, beside the loss of the run; then the outputs of a "
    "few images: all near 0, and all alike.",
    remedy="Use cross-entropy on logits for classes: its gradient is the error in probability, and large for a class "
    "that is wrongly ruled out. Squared error works, but ends 1 to 3 points lower here: it is minimised by the mean, "
    "which is the probability. Absolute error is for regression with outliers.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 6.2.1.2",
    also_causes=("loss_scaled_down",),  # its gradients are far smaller than those of the loss that fits
    looks="stops too high",
    shows="activation_mean",
    knobs=(
        Knob("lr", (1e-4, 0.03), log=True),
        Knob("optimizer", ("adam", "sgd")),
        Knob("width", (32, 512), log=True),
        Knob("steps", (100, 1000)),
    ),
)
