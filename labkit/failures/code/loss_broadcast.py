"""Outputs of shape (n, 1) against targets of shape (n): every prediction is compared with every target."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.regression import REGRESSION, squared_error
from labkit.recording.run import Run
from labkit.recording.summaries import unexplained

# Measured on MNIST and, through `watch`, on small programs with one number or one question of yes or no per sample.
TASKS = ("numbers", "yes or no")  # one output per sample; only there the shapes (n, 1) and (n) occur
# How far the loss of perfect outputs is from the loss of the same outputs for other samples' targets, as a share: 1e-6
# here, whatever the targets. A loss that fits: 1; with a strong penalty on the weights 0.6 and more.
SAME = 0.01
# Loss of perfect outputs over that of the best constant: 2 for squared errors, 1.09 to 1.12 for cross-entropy. A loss
# that fits: 0; with a strong penalty up to 0.14. Targets that are all equal: 0 as well.
NO_BETTER = 0.9
LEFT = 0.9  # share of that constant's loss at the end: 1.0 to 1.03 here; a net that has learned something is below

healthy = REGRESSION


def squared_error_of_all_pairs(outputs, targets):
    """The difference of (n, 1) and (n) is (n, n): each output minus each target."""
    return (outputs - targets).square().mean()


def squared_error_of_columns(outputs, targets):
    """Both of shape (n, 1)."""
    return (outputs - targets[:, None]).square().mean()


sick = healthy.but(loss=squared_error_of_all_pairs)


def signature(run: Run) -> Evidence | None:
    tests, constant = run.facts.get("probe_tests") or {}, run.facts.get("constant_loss") or 0.0
    truth, swapped, left = tests.get("truth", 0.0), tests.get("swapped", 0.0), unexplained(run)
    if run.facts.get("task") not in TASKS or not len(left) or not left[-1] > LEFT:
        return None
    if abs(truth - swapped) > SAME * abs(swapped) or truth < NO_BETTER * constant:
        return None
    return Evidence(
        seen=f"perfect outputs have a loss of {truth:.3g}, and {swapped:.3g} with the targets of other samples; always "
        f"the same prediction has {constant:.3g}, and the net ends at {left[-1] * constant:.3g}",
        usual="perfect outputs have a loss near 0, and a far larger one with the targets of other samples",
        onset=0,
        place="loss",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Broadcasting in the loss",
    cures={
        "outputs of shape (n), as the targets": sick.but(loss=squared_error),
        "targets of shape (n, 1), as the outputs": sick.but(loss=squared_error_of_columns),
    },
    false_cures={
        "three times as many steps: 10 %": sick.but(steps=1200),
        "ten times the learning rate: 10 to 11 %": sick.but(lr=0.03),
        "four times as many hidden units: 10 %": sick.but(width=1024),
        "SGD: 8 to 10 %": sick.but(optimizer="sgd", lr=0.1, momentum=0.0),
    },
    harm=0.9,
    symptom="The loss falls for a few steps and then stays at the variance of the targets. The net predicts about the "
    "same number, the mean of the targets, for every sample.",
    mechanism="The difference of a column and a row is a matrix: each prediction minus each target of the batch. A "
    "prediction is then best near the mean of all targets, whatever its input. There is no error, and mse_loss only "
    "warns.",
    formula=r"L = \frac{1}{N^2} \sum_{i, j} (\hat{y}_i - y_j)^2 \quad \Rightarrow \quad \hat{y}_i = \bar{y}",
    first_check="Print outputs.shape and targets.shape where the loss is computed; the element-wise loss must have one "
    "entry per sample. Or pass the targets themselves as outputs: the loss must be 0.",
    remedy="Make both shapes equal with outputs.squeeze(1) or targets.unsqueeze(1), and assert outputs.shape == "
    "targets.shape in the loss. Turn warnings into errors while developing: torch warns where mse_loss broadcasts.",
    reference="Humbatova et al., Taxonomy of Real Faults in Deep Learning Systems (2020), wrong tensor shape",
    looks="never moves",
    shows="probe_loss",
    knobs=(
        Knob("lr", (3e-4, 0.1), log=True),
        Knob("optimizer", ("adam", "sgd")),
        Knob("steps", (100, 1000)),
        Knob("width", (32, 1024), log=True),
    ),
    not_on_cifar10="the classes of photographs are no numbers, so there is nothing to regress on",
    learned={"mnist": 0.55},
    also_causes=("dead_relu", "dead_relu_by_learning_rate", "labels_shuffled", "plateau"),
    where=("loss",),
)
