"""The loss weighs one class a thousand times as much as the others: the net predicts that class for everything."""

import torch
from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

TASKS = ("classes", "tokens", "pixels")  # losses that know weights of classes
# Loss of confident outputs for other samples' labels over that of the best constant prediction. With equal weights: 8
# on MNIST, 7 to 18 in small programs, whatever the shares of the classes. One weight of 1,000 makes the constant
# prediction of its class almost free: 460 to 600 with 4 or 5 classes, 250 with 10.
CHEAP = 60.0
POOR = 0.9  # validation accuracy: 0.21 to 0.31 here, with Adam 0.77 to 0.83. Weights that do no harm are no fault

healthy = Recipe(momentum=0.0, steps=300)


def weighted_cross_entropy(outputs, targets):
    """Cross-entropy in which class 0 weighs 1 and every other class 0.001."""
    weights = torch.full((outputs.shape[1],), 1e-3, device=outputs.device, dtype=outputs.dtype)
    weights[0] = 1.0
    return cross_entropy(outputs, targets, weight=weights)


sick = healthy.but(loss=weighted_cross_entropy)


def signature(run: Run) -> Evidence | None:
    tests, constant = run.facts.get("probe_tests") or {}, run.facts.get("constant_loss") or 0.0
    if run.facts.get("task") not in TASKS or constant <= 0:
        return None
    ratio, accuracy = tests.get("swapped", 0.0) / constant, float(run["val_accuracy"][-1])
    if ratio < CHEAP or accuracy > POOR:
        return None
    return Evidence(
        seen=f"always the same prediction has a loss of only {constant:.2g}, confident predictions of other samples' "
        f"labels {ratio:.0f} times as much; the validation accuracy is {accuracy:.0%}",
        usual="7 to 18 times as much, where classes have equal weights or weigh as much as they are rare",
        onset=0,
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Class weights out of proportion",
    cures={"no class weights": sick.but(loss="cross_entropy")},
    false_cures={
        "three times as many steps: 64 to 68 %": sick.but(steps=900),
        "three times the learning rate: 63 to 68 %": sick.but(lr=0.3),
        "Adam: 77 to 83 %": sick.but(optimizer="adam", lr=0.003),
        "four times as many units: 33 to 37 %": sick.but(width=512),
    },
    harm=0.5,
    symptom="The loss is small from the first steps on and looks converged. The accuracy is near that of guessing: "
    "almost every sample gets the same class.",
    mechanism="A weight multiplies the gradient of its class. If one class weighs a thousand times as much as the "
    "others, a mistake in them costs nothing, and the net is paid for predicting the heavy class. It happens where "
    "weights are computed from wrong counts, given in another order than the classes, or squared by mistake.",
    formula=r"L = \frac{\sum_i w_{y_i} \ell_i}{\sum_i w_{y_i}} \approx \text{mean of } \ell_i \text{ over one class}",
    first_check="Print the weights beside the number of samples of each class; weight times count should be about "
    "equal. Then count how often each class is predicted.",
    remedy="Weigh each class by the inverse of its count, normalised to a mean of 1, or by the square root of that; or "
    "use no weights at all and sample in a balanced way. Judge a weighted loss by the accuracy of each class.",
    reference="Cui et al., Class-Balanced Loss Based on Effective Number of Samples (2019)",
    looks="stops too high",
    shows="probe_accuracy",
    knobs=(
        Knob("lr", (0.01, 1.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("steps", (100, 1000)),
        Knob("width", (32, 512), log=True),
    ),
    also_causes=("metric_broadcast",),
    where=("loss",),
)
