"""Softmax as the formula has it: exp(100) is infinite in float32, and infinity divided by infinity is NaN."""

from torch.nn.functional import cross_entropy

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# exp of more is infinite in float32. Samples whose largest output is below have a finite loss, those above have not;
# with cross_entropy outputs of 500 are no trouble.
LIMIT = 88.73
# Some sample with an output above this is fine: otherwise the loss gives out much earlier (see log_of_zero, at 16.6).
EARLIER = 20.0


def exponentials_divided(outputs, targets):
    """The logarithm of exp(output) / sum of exp(outputs), word for word."""
    exponentials = outputs.exp()
    shares = exponentials / exponentials.sum(1, keepdim=True)
    return -shares.gather(1, targets[:, None]).log().mean()


def exponentials_divided_and_clamped(outputs, targets):
    """The same with shares kept above 1e-8, against the logarithm of 0."""
    exponentials = outputs.exp()
    shares = exponentials / exponentials.sum(1, keepdim=True)
    return -shares.gather(1, targets[:, None]).clamp(1e-8).log().mean()


def largest_subtracted_first(outputs, targets):
    """The log-sum-exp trick by hand: the largest output taken off, and no division."""
    outputs = outputs - outputs.amax(1, keepdim=True)
    return (outputs.exp().sum(1).log() - outputs.gather(1, targets[:, None]).squeeze(1)).mean()


# Pixels of 0 to 255 and He init: outputs of a hundred and more, which cross_entropy takes in its stride.
healthy = Recipe(inputs="raw", init="he", init_scale=0.7, optimizer="adam", lr=0.001, steps=300)
sick = healthy.but(loss=exponentials_divided)


def signature(run: Run) -> Evidence | None:
    origin = broken_loss(run)
    if not origin:
        return None
    (fine, _, worst), closest = origin["largest"], origin["behind"][1]
    if not EARLIER < fine <= LIMIT < worst or not closest < LIMIT:
        return None  # `closest`: a right class this little behind has a share that is not 0
    return Evidence(
        seen=f"outputs are finite and the loss is not, at step {origin['step']}: it holds up to an output of "
        f"{fine:.1f} and fails at {worst:.1f}, even where the right class is only {closest:.1f} behind the largest",
        usual=f"a finite loss for any finite outputs; in float32 exp ends at {LIMIT}",
        onset=origin["step"],
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    title="Naive softmax",
    healthy=healthy,
    sick=sick,
    cures={
        "cross_entropy on the outputs": sick.but(loss=cross_entropy),
        "the largest output subtracted first": sick.but(loss=largest_subtracted_first),
    },
    false_cures={
        "shares clamped to 1e-8: NaN stays NaN": sick.but(loss=exponentials_divided_and_clamped),
        "clipping the gradient norm to 1": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.9,
    symptom="NaN in the loss while every output is finite, as soon as one of them passes 88; often not before the net "
    "has become sure of something.",
    mechanism="exp(89) is more than float32 can hold. The share of the surest class becomes infinity divided by "
    "infinity, NaN, and that of every other class something divided by infinity, 0.",
    first_check="The largest output of the batch at which it happened: above 88 points at an exp somewhere.",
    remedy="Give the raw outputs to cross_entropy, which subtracts the largest before it takes any exponential. Then "
    "see why the outputs are that large: here the pixels run from 0 to 255.",
    reference="Blanchard, Higham and Higham, Accurately computing the log-sum-exp and softmax functions (2021)",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("loss", ("cross_entropy", "mean_squared_error")),
        Knob("init_scale", (0.1, 2.0), log=True),
        Knob("lr", (1e-4, 0.01), log=True),
    ),
    cifar10="with raw pixels a perceptron stays at chance on photographs whatever its loss: the twin is not healthy",
)
