"""The loss is a mean already and is divided by the number of samples once more: every update is too small to matter."""

from torch.nn.functional import cross_entropy

from labkit.failures.code.summed_loss import times_too_large
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.run import Run
from labkit.recording.summaries import typical
from labkit.training.recipe import Recipe

# The loss of a constant prediction over the entropy of the labels, or over the variance of targets that are numbers. A
# mean over the samples: 0.26 to 3, whatever the loss; divided by a batch of 32 once more 0.03, by all samples 1e-4.
SMALL = 0.05
TINY = 1e-3  # the median update as a share of its layer; with SGD at the usual rates 4e-6, with Adam 1e-2: no harm
UNMOVED = 0.8  # what is left of the loss of a constant prediction; sick 0.96 to 1, with Adam or a matching rate 0.03
ALIVE = 1e-3  # the gradient norm over that factor: what it would be without it, here 1.7

SAMPLES = 10_000
healthy = Recipe()


def averaged_twice(outputs, targets):
    """Cross entropy, which is a mean, divided by the number of training samples."""
    return cross_entropy(outputs, targets) / SAMPLES


sick = healthy.but(loss=averaged_twice)


def signature(run: Run) -> Evidence | None:
    factor, left = times_too_large(run), left_over(run)
    update = typical(run["update_ratio"]).max()
    gradient = typical(run["grad_norm_total"][:, None])[0]
    if not (0 < factor < SMALL and left > UNMOVED and 0 < update < TINY and gradient > ALIVE * factor):
        return None
    return Evidence(
        seen=f"a constant prediction has {factor:.1g} times the loss that a mean over samples would have; the gradient "
        f"(norm {gradient:.1g}) and the updates ({update:.1g} of a layer) are as much too small",
        usual="a factor of 1, and updates of 0.001 to 0.03 of a layer",
        onset=0,
        place="loss",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Loss scaled down",
    cures={
        "the mean as it is": sick.but(loss="cross_entropy"),
        "Adam, which is invariant to the scale": sick.but(optimizer="adam", lr=0.003),
    },
    false_cures={
        "ten times the learning rate: LR 1": sick.but(lr=1.0),
        "momentum 0.9": sick.but(momentum=0.9),
    },
    harm=0.7,
    symptom="The loss is tiny from the first step, which looks like success, and stays where it is. The accuracy is "
    "that of guessing.",
    mechanism="The gradient shrinks by the same factor as the loss: a learning rate of 0.1 acts like 0.00001. Nothing "
    "else is wrong with the gradients.",
    formula=r"\nabla (c L) = c \, \nabla L \quad \Rightarrow \quad \eta_{\text{effective}} = c \, \eta",
    first_check="The first loss: about ln(classes) for a mean of cross entropies. Far below, it was scaled.",
    remedy="Divide once: reduction='mean' is a mean already. Sums for the log book (loss * len(batch) / len(data)) do "
    "not belong in front of backward(). Adam hides the bug; weight decay and clipping act as if they were stronger.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 5.9, on the loss as a mean over samples",
    looks="never moves",
    shows="update_ratio",
    knobs=(
        Knob("lr", (1e-4, 10.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("momentum", (0.0, 0.9)),
        Knob("steps", (100, 1000)),
    ),
    also_causes=("learning_rate_too_low", "learning_rate_left_low", "training_not_finished"),
)
