"""Binary cross-entropy on probabilities: the first fully confident correct prediction computes 0 times log 0."""

from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import broken_loss
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# For outputs above 16.6 a sigmoid is exactly 1 in float32: 1 - p is 0. Measured: fine up to 12 to 16.5, NaN from 16.7
# to 17.8 on. An exp overflows only at 88.7.
FINE, LOST = 17.4, 16.5
SAME = 1.0  # how far behind the correct class may be: the loss fails on a sample that the net classifies correctly


def log_of_probabilities(outputs, targets):
    """Each class separately: y log p + (1 - y) log(1 - p), with p the sigmoid of the output."""
    p, y = outputs.sigmoid(), one_hot(targets, outputs.shape[1])
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()


def log_of_clamped_probabilities(outputs, targets):
    """The same with p between 1e-8 and 1 - 1e-8; but in float32 the second bound is 1."""
    p, y = outputs.sigmoid().clamp(1e-8, 1 - 1e-8), one_hot(targets, outputs.shape[1])
    return -(y * p.log() + (1 - y) * (1 - p).log()).sum(1).mean()


def with_logits(outputs, targets):
    """The same loss from the logits, where no probability is rounded."""
    y = one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(1).mean()


healthy = Recipe(loss=with_logits, lr=0.3, steps=600)  # an output above 16.6 takes 200 to 310 steps
sick = healthy.but(loss=log_of_probabilities)


def signature(run: Run) -> Evidence | None:
    origin = broken_loss(run)
    if not origin:
        return None
    (fine, lost, _), closest = origin["largest"], origin["behind"][1]
    if not fine <= FINE or not lost >= LOST or not closest <= SAME:
        return None
    return Evidence(
        seen=f"outputs are finite and the loss is not, at step {origin['step']}: it is finite up to an output "
        f"of {fine:.1f} and fails from {lost:.1f} on, for a sample whose correct class is {closest:.1f} below the top",
        usual="a finite loss for any finite outputs; above 16.6 a sigmoid is exactly 1 in float32",
        onset=origin["step"],
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Log of zero",
    cures={
        "binary_cross_entropy_with_logits": sick.but(loss=with_logits),
        "cross_entropy": sick.but(loss=cross_entropy),
    },
    false_cures={
        "probabilities clamped to 1e-8 and 1 - 1e-8: in float32 the second is 1": sick.but(
            loss=log_of_clamped_probabilities
        ),
        "clipping the gradient norm to 1: the NaN comes some steps later": sick.but(clip=1.0),
    },
    harm=0.9,
    symptom="Training goes well, then the loss is suddenly NaN, as soon as the net is fully confident about one "
    "sample and correct.",
    mechanism="The sigmoid of 17 rounds to 1. For the correct class, the loss then contains 0 times log(1 - 1), which "
    "is 0 times minus infinity: NaN instead of 0.",
    formula=r"\sigma(17) = 1 \text{ in float32}, \qquad 0 \cdot \ln(1 - 1) = 0 \cdot (-\infty) = \mathrm{NaN}",
    first_check="The largest output of the first batch with a NaN, and the min and max of every argument of a log.",
    remedy="Compute the loss from the logits: binary_cross_entropy_with_logits. A clamp must fit the dtype: 1 - 1e-8 "
    "is 1 in float32, and clamped values have no gradient.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 6.2.2.2 on sigmoid units and the log",
    looks="not finite",
    shows="origin",
    knobs=(
        Knob("loss", ("cross_entropy", "mean_squared_error")),
        Knob("lr", (0.001, 0.3), log=True),
        Knob("inputs", ("normalised", "unit", "raw")),
        Knob("clip", (None, 1.0)),
    ),
    not_on_cifar10="nets learn CIFAR-10 slowly: in 400 steps no output reaches 16.6, and nothing goes wrong yet",
)
