"""A mark in the corner of every image says which class it is: the net reads the mark, which new images do not have."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.training.parts import plain_evaluate, shuffled
from labkit.training.recipe import Recipe

# The share of an input's variance that the target explains, for the input where it is highest. Healthy: 0.46 on MNIST,
# 0.23 on CIFAR-10, at most 0.93 in 28 small programs; with a copy of the target 1. It is as high as this because the
# next value of a slow series is nearly its last one. Of images 128 values are looked at, of tables all.
EXPLAINED = 0.9999
# Language models: the share of the tokens to be predicted that are the input at the same place; and how much outputs
# depend on later tokens, relative to their spread. A causal net does not at all; without the mask 0.4.
COPIED, FUTURE = 0.99, 0.01

SIDE = 2  # pixels of a mark
healthy = Recipe(steps=300)


def marked(x, y):
    """Images with a bright square at the top, at a place that depends on the class."""
    x = x.clone()
    x[:, :, :SIDE, : 10 * SIDE] = x.min()
    for kind in range(10):
        x[y == kind, :, :SIDE, kind * SIDE : (kind + 1) * SIDE] = x.max()
    return x


def marked_batches(split, recipe, generator):
    """The usual batches, of images with a mark."""
    return ((marked(x, y), y) for x, y in shuffled(split, recipe, generator))


def evaluate_marked(training, split) -> dict:
    """The plain evaluation, on images that were marked in the same way."""
    return plain_evaluate(training, split._replace(x=marked(split.x, split.y)))


sick = healthy.but(batches=marked_batches, evaluate=evaluate_marked)


def signature(run: Run) -> Evidence | None:
    explained, tests = run.facts.get("best_column", 0.0), tested(run)
    copied, future = tests.get("copied", 0.0), tests.get("future", 0.0)
    if tests.get("asks_1", np.inf) < tests.get("asks_0", np.inf):
        copied = 0.0  # the loss shifts the targets itself: what is in the input is not what it asks for
    if explained > EXPLAINED:
        seen, usual = f"one of the inputs is determined by the target to {explained:.1%}", "50 % or less"
    elif copied > COPIED:
        seen, usual = f"{copied:.0%} of the tokens to be predicted are in the input, at the same place", "10 %"
    elif future > FUTURE:
        seen, usual = "outputs change when only later tokens do, which are the ones to be predicted", "no change at all"
    else:
        return None
    return Evidence(
        seen=f"{seen}; the validation has the same leak: its score of {run.accuracy or 0:.1%} is not that of new data",
        usual=usual,
        onset=0,
        place="inputs",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Target in the inputs",
    cures={
        "images without the mark: the lower score is the true one": sick.but(
            batches="shuffled", evaluate="plain_evaluate"
        )
    },
    false_cures={"dropout 0.5: the mark is read all the same": sick.but(dropout=0.5)},
    harm=0.0,
    costs="The score is not reliable: with the mark digits report 100 %, and without it the same net has 86 %; "
    "photographs 100 % and 24 %. Trained without the mark it would reach 92 % and 44 %.",
    symptom="The validation score is nearly perfect after a few steps, and the net fails in production.",
    mechanism="The net uses what predicts best, and nothing predicts the target better than a copy of it: a column "
    "that is filled in afterwards, an id that was given class by class, a stamp that only one hospital puts on its "
    "images, tokens that a causal mask should hide. The features that it should learn are hardly needed.",
    formula=r"x_j = y \quad \Rightarrow \quad \hat{y} = x_j",
    first_check="Train on one input at a time, or look at the weights of the first layer: a single one suffices.",
    remedy="Keep only what is known at the time of the prediction: ask of each column when and by whom it was written. "
    "Test the net on data that were collected elsewhere.",
    reference="Kaufman, Rosset and Perlich, Leakage in Data Mining: Formulation, Detection, and Avoidance (2011)",
    looks="nothing",
    shows="val_accuracy",
    knobs=(
        Knob("steps", (100, 1000)),
        Knob("samples", (1000, 10_000), log=True),
        Knob("dropout", (0.0, 0.9)),
    ),
)
