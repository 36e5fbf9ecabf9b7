"""The log of a softmax in two steps: a probability that rounds to 0 has a log of minus infinity."""

from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# How far the correct class may be behind the largest output. Beyond 103 its probability is 0 in float32 and the loss is
# infinite; beyond 88.7 the loss is finite, but its gradient, 1 / probability, is not. Measured over ten runs: fine up
# to 72 to 88.6, not from 88.8 to 102 on.
FINE, LOST = 90.0, 88.0


def log_of_softmax(outputs, targets):
    """Softmax first, then its log."""
    return -outputs.softmax(1).gather(1, targets[:, None]).log().mean()


def log_of_clamped_softmax(outputs, targets):
    """The same with probabilities clamped to at least 1e-8."""
    return -outputs.softmax(1).gather(1, targets[:, None]).clamp(1e-8).log().mean()


def log_softmax(outputs, targets):
    """Both in one step: outputs minus the log of the sum of their exponentials."""
    return -outputs.log_softmax(1).gather(1, targets[:, None]).mean()


# Pixels of 0 to 255: outputs a hundred apart within two steps, which cross_entropy handles.
healthy = Recipe(inputs="raw", optimizer="adam", lr=0.003, steps=200)
sick = healthy.but(loss=log_of_softmax)


def signature(run: Run) -> Evidence | None:
    origin = broken_loss(run)
    if not origin or origin.get("nan_losses"):
        return None
    fine, lost, _ = origin["behind"]
    if not fine <= FINE or not lost >= LOST:
        return None
    return Evidence(
        seen=f"outputs are finite and the loss or its gradient is not, at step {origin['step']}: it is finite where "
        f"the correct class is up to {fine:.1f} behind the largest output and fails from {lost:.1f} on",
        usual="a finite loss for any finite outputs; in float32 exp(-104) is 0, and its log infinite",
        onset=origin["step"],
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Naive log-softmax",
    cures={
        "cross_entropy on the outputs": sick.but(loss=cross_entropy),
        "log_softmax in one step": sick.but(loss=log_softmax),
    },
    false_cures={
        "probabilities clamped to 1e-8: no NaN but 56 %, and no gradient for the worst mistakes": sick.but(
            loss=log_of_clamped_softmax
        ),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    harm=0.9,
    symptom="An infinite loss, or a finite one with NaN gradients, on a batch with one sample that the net gets very "
    "wrong. Outputs and softmax are finite.",
    mechanism="The probability of a class 104 behind the largest is below the smallest float32 and rounds to 0; log(0) "
    "is minus infinity. From 89 on the probability is not 0, but 1 / probability overflows.",
    formula=r"\ln \frac{e^{-104}}{\sum_k e^{z_k}} = \ln 0 = -\infty",
    first_check="The smallest probability of the correct class in the first batch that failed: 0, or almost 0.",
    remedy="Use log_softmax or cross_entropy, which never compute the probability. A clamp removes the NaN, but also "
    "the gradient of every clamped sample: exactly those that need it.",
    reference="Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax functions (2021)",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("loss", ("cross_entropy", "mean_squared_error")),
        Knob("lr", (1e-4, 0.01), log=True),
        Knob("init_scale", (0.1, 2.0), log=True),
    ),
    not_on_cifar10="with raw pixels a perceptron stays at chance on CIFAR-10 with any loss: the twin is not healthy",
)
