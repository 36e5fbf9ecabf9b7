"""Binary cross-entropy on probabilities: the first answer that is certain and right makes 0 times log 0."""

from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# From an output of 16.6 on, a sigmoid is 1 in float32 and not a little less: 1 - p is 0. Measured: fine up to 12 to
# 16.5, NaN from 16.7 to 17.8 on. An exp gives out at 88.7 only.
FINE, LOST = 17.4, 16.5
SAME = 1.0  # how far behind the right class may be: the sample that it fails on is one that the net has right


def logarithms_of_probabilities(outputs, targets):
    """Each class by itself: y log p + (1 - y) log(1 - p), with p the sigmoid of the output."""
    p, y = outputs.sigmoid(), one_hot(targets, outputs.shape[1])
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()


def logarithms_of_clamped_probabilities(outputs, targets):
    """The same with p between 1e-8 and 1 - 1e-8; but in float32 the second of them is 1."""
    p, y = outputs.sigmoid().clamp(1e-8, 1 - 1e-8), one_hot(targets, outputs.shape[1])
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()


def with_logits(outputs, targets):
    """The same loss from the outputs themselves, where no probability is ever rounded."""
    y = one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(1).mean()


healthy = Recipe(loss=with_logits)
sick = healthy.but(loss=logarithms_of_probabilities)


def signature(run: Run) -> Evidence | None:
    origin = broken_loss(run)
    if not origin:
        return None
    (fine, lost, _), closest = origin["largest"], origin["behind"][1]
    if not fine <= FINE or not lost >= LOST or not closest <= SAME:
        return None
    return Evidence(
        seen=f"outputs are finite and the loss is not, at step {origin['step']}: it holds up to an output of "
        f"{fine:.1f} and fails from {lost:.1f} on, for a sample whose right class is {closest:.1f} behind the largest",
        usual="a finite loss for any finite outputs; from 16.6 on a sigmoid is exactly 1 in float32",
        onset=origin["step"],
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    title="Logarithm of zero",
    healthy=healthy,
    sick=sick,
    cures={
        "binary_cross_entropy_with_logits": sick.but(loss=with_logits),
        "cross_entropy": sick.but(loss=cross_entropy),
    },
    false_cures={
        "probabilities clamped to 1e-8 and 1 - 1e-8: in float32 the second is 1": sick.but(
            loss=logarithms_of_clamped_probabilities
        ),
        "clipping the gradient norm to 1: it comes some steps later": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.9,
    symptom="Training goes well, and then a NaN out of nothing, at the moment at which the net gets one sample "
    "perfectly right.",
    mechanism="A sigmoid of 17 rounds to 1. For a class that is there, the loss then holds 0 times log(1 - 1), which "
    "is 0 times minus infinity: NaN, and not the 0 that was meant.",
    first_check="The largest output of the batch at which it happened; and min and max of whatever a log is taken of.",
    remedy="Compute the loss from the outputs: binary_cross_entropy_with_logits. A clamp must fit the format: 1 - 1e-8 "
    "is 1 in float32, and what a clamp does hold back has no gradient.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 6.2.2.2 on sigmoid units and the log",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("loss", ("cross_entropy", "mean_squared_error")),
        Knob("lr", (0.001, 0.3), log=True),
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("clip", (None, 1.0)),
    ),
    cifar10="photographs are learned slowly: in 400 steps no output reaches 16.6, and nothing goes wrong yet",
)
