"""Softmax exactly as the formula is written: exp(100) is infinite in float32, and inf / inf is NaN."""

from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# Above this, exp is infinite in float32. Samples whose largest output is below have a finite loss, those above do not;
# with cross_entropy outputs of 500 are no problem.
LIMIT = 88.73
# Some sample with an output above this is fine: otherwise the loss fails much earlier (see log_of_zero, at 16.6).
EARLIER = 20.0


def naive_softmax_loss(outputs, targets):
    """The log of exp(output) / sum of exp(outputs), as written."""
    exponentials = outputs.exp()
    probabilities = exponentials / exponentials.sum(1, keepdim=True)
    return -probabilities.gather(1, targets[:, None]).log().mean()


def naive_softmax_loss_with_clamp(outputs, targets):
    """The same with probabilities clamped to at least 1e-8, against log(0)."""
    exponentials = outputs.exp()
    probabilities = exponentials / exponentials.sum(1, keepdim=True)
    return -probabilities.gather(1, targets[:, None]).clamp(1e-8).log().mean()


def max_subtracted_first(outputs, targets):
    """The log-sum-exp trick by hand: subtract the largest output, and do not divide."""
    outputs = outputs - outputs.amax(1, keepdim=True)
    return (outputs.exp().sum(1).log() - outputs.gather(1, targets[:, None]).squeeze(1)).mean()


# Pixels of 0 to 255 and He init: outputs of a hundred and more, which cross_entropy handles.
healthy = Recipe(inputs="raw", init="he", init_scale=0.7, optimizer="adam", lr=0.001, steps=300)
sick = healthy.but(loss=naive_softmax_loss)


def signature(run: Run) -> Evidence | None:
    origin = broken_loss(run)
    if not origin:
        return None
    (fine, _, worst), closest = origin["largest"], origin["behind"][1]
    if not EARLIER < fine <= LIMIT < worst or not closest < LIMIT:
        return None  # `closest`: a correct class this close to the largest has a probability above 0
    return Evidence(
        seen=f"outputs are finite and the loss is not, at step {origin['step']}: it is finite up to an output of "
        f"{fine:.1f} and fails at {worst:.1f}, even where the correct class is only {closest:.1f} behind the largest",
        usual=f"a finite loss for any finite outputs; in float32 exp overflows at {LIMIT}",
        onset=origin["step"],
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Naive softmax",
    cures={
        "cross_entropy on the outputs": sick.but(loss=cross_entropy),
        "the largest output subtracted first": sick.but(loss=max_subtracted_first),
    },
    false_cures={
        "probabilities clamped to 1e-8: NaN stays NaN": sick.but(loss=naive_softmax_loss_with_clamp),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    harm=0.9,
    symptom="NaN in the loss while every output is finite, as soon as one of them exceeds 88; often not before the net "
    "has become confident.",
    mechanism="exp(89) is more than float32 can hold. The probability of the most confident class becomes inf / inf, "
    "which is NaN, and that of every other class x / inf, which is 0.",
    formula=r"\frac{e^{89}}{\sum_k e^{z_k}} = \frac{\infty}{\infty} = \mathrm{NaN}",
    first_check="The largest output of the first batch that failed: above 88, look for an exp.",
    remedy="Give the raw outputs to cross_entropy, which subtracts the largest before any exp. Then find out why the "
    "outputs are so large: here the pixels range from 0 to 255.",
    reference="Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax functions (2021)",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("loss", ("cross_entropy", "mean_squared_error")),
        Knob("init_scale", (0.1, 2.0), log=True),
        Knob("lr", (1e-4, 0.01), log=True),
    ),
    not_on_cifar10="with raw pixels a perceptron stays at chance on CIFAR-10 with any loss: the twin is not healthy",
)
