"""Validation labels count from 1, training labels from 0: every good prediction is counted as wrong."""

import math

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, unexplained
from labkit.training.parts import plain_evaluate
from labkit.training.recipe import Recipe

# Measured on MNIST and CIFAR-10 and, through `watch`, on small programs with 4 to 27 classes of samples or tokens.
# Share of the loss of a constant prediction that is left on training samples at the end: 0.001 to 0.28 in programs,
# 0.08 on MNIST, 0.55 to 0.61 on CIFAR-10. Nothing to learn: 0.77 and more, or memorised with an accuracy at chance.
LEARNED = 0.7
# Validation loss at the end over that of a constant prediction: 1.7 to 9.8. Healthy 0 to 0.65; shuffled labels 1.1 to
# 1.3.
WRONG = 1.4
# Validation accuracy over that of guessing: 0 to 0.25, on CIFAR-10 0.48 to 0.6. Other inputs at validation, or training
# on almost one class only: 0.87 and more.
BELOW = 0.72

healthy = Recipe(momentum=0.0, steps=300)


def evaluate_counted_from_1(training, split) -> dict:
    """The plain evaluation, with labels one higher; the last class has become the first."""
    return plain_evaluate(training, split._replace(y=(split.y + 1) % training.data.classes))


sick = healthy.but(evaluate=evaluate_counted_from_1)


def guessing(run: Run) -> float:
    """The accuracy of guessing: by the number of classes, or, where that is unknown, by the entropy of the labels."""
    if run.facts.get("task") == "yes or no":
        return 0.5
    classes = run.facts.get("classes") or 0
    return 1 / classes if classes > 1 else math.exp(-chance_loss(run))


def signature(run: Run) -> Evidence | None:
    left, validated = unexplained(run), run["val_loss"] / chance_loss(run)
    accuracy, chance = float(run["val_accuracy"][-1]), guessing(run)
    if not (left[-1] < LEARNED and validated[-1] > WRONG and accuracy < BELOW * chance):
        return None
    return Evidence(
        seen=f"a validation accuracy of {accuracy:.1%}, where guessing gives {chance:.0%}, and a validation loss "
        f"{validated[-1]:.1f} times that of a constant prediction; on training samples {left[-1]:.2f} times it",
        usual=f"at least the {chance:.0%} of guessing, which an overfitted net reaches too",
        onset=0,
        place="validation set",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Labels differ at validation",
    cures={"the same labels in training and validation": sick.but(evaluate="plain_evaluate")},
    false_cures={
        "weight decay 0.01: 0.4 to 0.6 %": sick.but(weight_decay=0.01),
        "dropout 0.5, as if the net were overfitting: 0.4 to 0.7 %": sick.but(dropout=0.5),
        "six times as many training images: 0.4 to 0.7 %": sick.but(samples=60_000),
    },
    harm=0.95,
    symptom="Training goes well. The validation loss rises from the first evaluation on, and the validation accuracy "
    "is far below that of guessing.",
    mechanism="A net that has learned its classes is confident of them. If the same classes have other numbers in the "
    "validation set, each confident prediction is wrong: one file counts from 1 and the other from 0, folders were "
    "sorted by another rule, or a label encoder was fitted again on the validation set.",
    formula=r"L_{\text{val}} = -\ln p_{\pi(y)}(x) \gg -\ln p_y(x)",
    first_check="Show a few validation images with their labels, next to training images with the same labels. Then "
    "the confusion matrix: one full entry in each row, away from the diagonal.",
    remedy="Build the table from class names to numbers once, from the training set, and save it with the net. Never "
    "fit a label encoder on validation or test data.",
    reference="Breck et al., Data Validation for Machine Learning (2019), on training-serving skew",
    looks="validation worse",
    shows="val_loss",
    knobs=(
        Knob("steps", (50, 1000)),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("dropout", (0.0, 0.7)),
        Knob("weight_decay", (0.0, 0.1)),
    ),
    also_causes=("columns_differ_at_validation", "overconfidence", "too_few_samples"),
)
