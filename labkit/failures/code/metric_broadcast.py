"""Predictions of shape (N, 1) are compared with labels of shape (N): N times N comparisons, one in ten is equal."""

import math

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import parts
from labkit.training.recipe import Recipe

# A wrong prediction gives the correct class a probability of at most 1/2, so it costs at least ln 2. With a mean
# cross-entropy of L, at least 1 - L / ln 2 of the predictions are correct. A correct metric never reports less; this
# one is 55 to 57 points lower.
SHORT = 0.05
# The first loss over ln(classes): 0.99 and more with cross-entropy; a squared error starts below 0.1.
CROSS_ENTROPY = 0.5

healthy = Recipe()


def evaluate_with_broadcast(training, split) -> dict:
    """Like the plain evaluation, but the predictions keep a second axis, and == compares each with every label."""
    results = parts.plain_evaluate(training, split)
    with torch.no_grad():
        predicted = training.forward(split.x).argmax(1, keepdim=True)
        return results | {"accuracy": (predicted == split.y).float().mean()}


sick = healthy.but(evaluate=evaluate_with_broadcast)


def signature(run: Run) -> Evidence | None:
    losses, accuracy = run["val_loss"], run["val_accuracy"]
    with np.errstate(invalid="ignore"):
        least = 1 - losses / math.log(2)
        short = np.flatnonzero(least - accuracy > SHORT)
    if not len(short) or losses.min() < 0 or not losses[0] > CROSS_ENTROPY * math.log(run.facts.get("classes") or 10):
        return None
    last = short[-1]
    return Evidence(
        seen=f"an accuracy of {accuracy[last]:.1%} at a validation loss of {losses[last]:.2f}, which implies that at "
        f"least {least[last]:.0%} of the predictions are correct",
        usual="an accuracy of at least 1 - loss / 0.69",
        onset=int(run["val_step"][short[0]]),
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Broadcasting in the metric",
    cures={"predictions of the same shape as the labels": sick.but(evaluate=parts.plain_evaluate)},
    false_cures={"twice as many steps": sick.but(steps=800), "a lower learning rate: 0.03": sick.but(lr=0.03)},
    harm=0.9,
    costs="The net is as good as its healthy twin. It costs a metric that everyone relies on, and the days spent "
    "fixing a net that is not broken.",
    symptom="Training and validation loss fall as they should, but the accuracy stays at chance level from the first "
    "evaluation to the last.",
    mechanism="`argmax(keepdim=True)` returns a column. Compared with a row of labels, it broadcasts to an N by N "
    "table of all pairs. Its mean is the share of pairs that happen to agree: one in ten.",
    formula=r"\frac{1}{N^2} \sum_{i, j} [\hat{y}_i = y_j] \approx \sum_k p_k q_k",
    first_check="The shape of `predicted == labels`: it must be (N,). Or use the loss: an accuracy below 1 - loss / "
    "ln 2 is impossible.",
    remedy="Give both the same shape, and assert it. Test a metric on a case with a known result before you trust it.",
    reference="NumPy documentation, Broadcasting (2024), on how shapes (N, 1) and (N) combine",
    looks="validation worse",
    shows="val_accuracy",
    knobs=(
        Knob("steps", (100, 1000)),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("width", (16, 512), log=True),
    ),
    not_on_cifar10="These nets end with a loss of about 1.4 on photographs, twice ln 2, and then the loss says "
    "nothing about how many predictions are correct.",
)
