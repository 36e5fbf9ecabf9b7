"""Targets of a regression in the thousands: the outputs start near 0 and need too many steps to get there."""

from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.regression import REGRESSION, mlp_with_one_output
from labkit.recording.run import Run
from labkit.recording.summaries import unexplained
from labkit.training.data import TARGET_SCALES
from labkit.training.recipe import Recipe

# The mean of the targets or their standard deviation, whichever is larger in size. Standardised targets: 0.8 to 1.1;
# here 4,200, in small programs of other tasks 2,000 to 3,200.
FAR = 10.0
# Share of the variance that is left on the probe at the end. Here 0.22 to 0.23, with a mean of 30 and a standard
# deviation of 1 0.27, in small programs 0.76 and more. Healthy: 0.03 to 0.05; targets of standard deviation 10 to 100
# around 0, which Adam reaches in time: 0.03 to 0.06.
LEFT = 0.15

healthy = REGRESSION
sick = healthy.but(targets="thousands")


class ScaledBack(nn.Module):
    """The net's output times the standard deviation of the targets, plus their mean: neither is trained."""

    def __init__(self, net: nn.Module, targets: str):
        super().__init__()
        self.net = net
        mean, over_deviation = TARGET_SCALES["numbers"]
        zero, factor = TARGET_SCALES[targets]
        self.mean, self.deviation = (mean - zero) * factor, factor / over_deviation

    def forward(self, x):
        return self.mean + self.deviation * self.net(x)


def mlp_scaled_back(recipe: Recipe, data) -> nn.Module:
    """The same net, of which the outputs begin on the scale of the targets."""
    return ScaledBack(mlp_with_one_output(recipe, data), recipe.targets)


def signature(run: Run) -> Evidence | None:
    measured = run.facts.get("probe_tests") or {}
    mean, deviation, left = measured.get("target_mean", 0.0), measured.get("target_std", 0.0), unexplained(run)
    if max(abs(mean), deviation) < FAR or not len(left) or left[-1] < LEFT:
        return None
    return Evidence(
        seen=f"targets with mean {mean:.3g} and standard deviation {deviation:.3g}; at the end {left[-1]:.2f} of "
        "their variance is left",
        usual="targets with mean 0 and standard deviation 1, of which less than 0.1 is left",
        onset=0,
        place="targets",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Targets not scaled",
    cures={
        "targets with mean 0 and standard deviation 1": sick.but(targets="numbers"),
        "outputs multiplied and shifted to the scale of the targets": sick.but(model=mlp_scaled_back),
    },
    false_cures={
        "three times as many steps: 50 to 52 %": sick.but(steps=1200),
        "ten times the learning rate: 37 to 45 %": sick.but(lr=0.03),
        "four times as many hidden units: 37 to 44 %": sick.but(width=1024),
        "gradients clipped to 1: 31 to 34 %": sick.but(clip=1.0),
        "SGD: NaN": sick.but(optimizer="sgd", lr=0.01, momentum=0.0),
    },
    harm=0.4,
    symptom="The loss is in the millions and falls at every step, but the predictions stay far from the targets. With "
    "SGD the same targets give NaN within a few steps.",
    mechanism="A new net outputs numbers near 0 with a standard deviation below 1. To get to 4,500, weights and biases "
    "must grow a hundred times, and a step of Adam changes each by no more than the learning rate. Until the mean is "
    "reached nothing else is learned. With SGD the gradient grows with the targets, and the first step goes too far.",
    formula=r"|\Delta \theta| \leq \eta \text{ per step with Adam} \quad \Rightarrow \quad t \gtrsim "
    r"\frac{|\bar{y}|}{\eta}",
    first_check="Mean and standard deviation of the targets, beside those of the outputs before training. The loss "
    "over the variance of the targets says what is left: 1 for a net that has learned only their mean.",
    remedy="Subtract the mean of the training targets and divide by their standard deviation; scale predictions back "
    "with the same two numbers. Take the logarithm of targets that span several orders of magnitude. A last bias that "
    "starts at the mean helps where the targets are only shifted.",
    reference="LeCun, Bottou, Orr, Mueller, Efficient BackProp (1998), section 4.5",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("targets", ("numbers", "thousands")),
        Knob("lr", (3e-4, 0.3), log=True),
        Knob("optimizer", ("adam", "sgd")),
        Knob("steps", (100, 2000)),
        Knob("width", (32, 1024), log=True),
    ),
    not_on_cifar10="the classes of photographs are no numbers, so there is nothing to regress on",
    learned={"mnist": 0.55},
    also_causes=("clipping_too_tight", "learning_rate_too_high", "learning_rate_too_high_late"),
)
