"""The logarithm of a softmax in two steps: a share that rounds to 0 has the logarithm minus infinity."""

from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# How far the right class may be behind the largest output. Beyond 103 its share is 0 in float32 and the loss is
# infinite; beyond 88.7 the loss is finite and its gradient, one divided by the share, is not. Measured over ten
# runs: fine up to 72 to 88.6, not from 88.8 to 102 on.
FINE, LOST = 90.0, 88.0


def logarithm_of_softmax(outputs, targets):
    """Softmax first, its logarithm afterwards."""
    return -outputs.softmax(1).gather(1, targets[:, None]).log().mean()


def logarithm_of_clamped_softmax(outputs, targets):
    """The same with shares kept above 1e-8."""
    return -outputs.softmax(1).gather(1, targets[:, None]).clamp(1e-8).log().mean()


def log_softmax(outputs, targets):
    """Both in one: outputs minus the logarithm of the sum of their exponentials."""
    return -outputs.log_softmax(1).gather(1, targets[:, None]).mean()


# Pixels of 0 to 255: outputs a hundred apart within two steps, which cross_entropy takes in its stride.
healthy = Recipe(inputs="raw", optimizer="adam", lr=0.003, steps=200)
sick = healthy.but(loss=logarithm_of_softmax)


def signature(run: Run) -> Evidence | None:
    origin = broken_loss(run)
    if not origin or origin.get("nan_losses"):
        return None
    fine, lost, _ = origin["behind"]
    if not fine <= FINE or not lost >= LOST:
        return None
    return Evidence(
        seen=f"outputs are finite and the loss or its gradient is not, at step {origin['step']}: it holds where the "
        f"right class is up to {fine:.1f} behind the largest output and fails from {lost:.1f} on",
        usual="a finite loss for any finite outputs; in float32 exp(-104) is 0, and its logarithm infinite",
        onset=origin["step"],
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    title="Naive log-softmax",
    healthy=healthy,
    sick=sick,
    cures={
        "cross_entropy on the outputs": sick.but(loss=cross_entropy),
        "log_softmax in one step": sick.but(loss=log_softmax),
    },
    false_cures={
        "shares clamped to 1e-8: no NaN but 56 %, without a gradient for what it gets most wrong": sick.but(
            loss=logarithm_of_clamped_softmax
        ),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.9,
    symptom="An infinite loss, or a finite one with NaN gradients, on a batch with one sample that the net is very "
    "wrong about. Outputs and softmax are finite.",
    mechanism="The share of a class 104 behind the first is smaller than any float32 and rounds to 0; the logarithm of "
    "0 is minus infinity. From 89 on the share still is a number, but one divided by it is not.",
    first_check="The smallest share that the right class gets in the batch at which it happened: 0, or almost.",
    remedy="log_softmax or cross_entropy, which never form the share. A clamp stops the NaN and with it the gradient "
    "of every clamped sample: exactly those that need it.",
    reference="Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax functions (2021)",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("loss", ("cross_entropy", "mean_squared_error")),
        Knob("lr", (1e-4, 0.01), log=True),
        Knob("init_scale", (0.1, 2.0), log=True),
    ),
    cifar10="with raw pixels a perceptron stays at chance on photographs whatever its loss: the twin is not healthy",
)
