"""softmax(dim=0) before the loss: the outputs of each class sum to 1 over the batch, not over the classes."""

import numpy as np
from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss
from labkit.training import models
from labkit.training.recipe import Recipe

# Measured on MNIST and CIFAR-10 and, through `watch`, on 2, 3, 20 and 50 classes and on one output for yes or no.
# Distance of the sum over the batch from 1, at every evaluation: rounding of 2e-6 at most. Healthy outputs: 0.6 and
# more; outputs that are all 0: 1.
ROUNDING = 1e-3
# Inside the loss: a softmax over a single sample is 1, so each sample alone has the same loss, up to rounding, ...
ALIKE = 1e-5
# ... and the batch has another: by 0.003 nats and more at one evaluation at least. Outputs that are all 0: by 1e-7.
OTHER = 1e-3

healthy = Recipe(steps=300)


def mlp_with_softmax_over_batch(recipe, data) -> nn.Module:
    """The plain net, with a softmax over the wrong axis."""
    return _followed_by(nn.Softmax(dim=0), recipe, data)


def mlp_with_softmax(recipe, data) -> nn.Module:
    """The plain net, but it outputs probabilities instead of logits."""
    return _followed_by(nn.Softmax(dim=1), recipe, data)


def mlp_with_log_softmax(recipe, data) -> nn.Module:
    """The plain net, but it outputs logarithms of probabilities."""
    return _followed_by(nn.LogSoftmax(dim=1), recipe, data)


def _followed_by(module: nn.Module, recipe, data) -> nn.Module:
    net = models.mlp(recipe, data)
    assert isinstance(net, nn.Sequential)
    return net.append(module)


sick = healthy.but(model=mlp_with_softmax_over_batch)


def signature(run: Run) -> Evidence | None:
    distance = run["batch_softmax_distance"]
    if len(distance) and (distance < ROUNDING).all():
        seen = f"the outputs of each class sum to 1 over the batch, within {max(distance.max(), 1e-7):.0e}"
        return Evidence(seen, "they sum to 1 over the classes, or are logits", 0, "outputs", confidence=0.97)
    return in_the_loss(run)


def in_the_loss(run: Run) -> Evidence | None:
    """Outputs are logits, and the loss puts a softmax over the batch on them."""
    alone, variance, together = (run[name] for name in ("sample_loss_mean", "sample_loss_variance", "probe_loss"))
    classes = run.facts.get("classes")
    if not classes or run["histogram"][0, -1].sum() != 64 * classes or not np.isfinite([*alone, *together]).all():
        return None  # other losses compare samples by design: their outputs are no logits of classes
    same = min(np.abs(alone).max(), np.abs(alone - chance_loss(run)).max()) < ALIKE and variance.max() < ALIKE**2
    if not same or np.abs(together - alone).max() < OTHER:
        return None
    return Evidence(
        seen=f"the loss of each sample alone is {alone[-1]:.3f}, whatever its label; that of the batch is "
        f"{together[-1]:.3f}",
        usual="a loss that is the mean over its samples",
        onset=0,
        place="loss",
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Softmax over the batch",
    cures={
        "logits passed directly to cross_entropy": sick.but(model="mlp"),
        "log_softmax over the classes, dim=1": sick.but(model=mlp_with_log_softmax),
    },
    false_cures={
        "ten times the learning rate: 80 %": sick.but(lr=1.0),
        "Adam: 73 to 75 %": sick.but(optimizer="adam", lr=0.003),
        "a batch of 512: 24 to 31 %": sick.but(batch_size=512),
        "softmax over the classes: 81 to 89 %, since cross_entropy has one of its own": sick.but(
            model=mlp_with_softmax
        ),
    },
    harm=0.2,
    symptom="The loss stays within 1 % of ln(classes), yet the accuracy rises slowly. The prediction for an image "
    "depends on the other images in the batch, and a single image gets the same output for every class.",
    mechanism="Over 128 images each output is about 1 / 128, so cross_entropy sees logits that are all alike and "
    "passes back almost no gradient; a larger batch makes it worse. With log_softmax and nll_loss the loss starts at "
    "ln(batch size), 4.85, and the net does learn: to find the images of a class, not the class of an image.",
    formula=r"p_{ik} = \frac{e^{z_{ik}}}{\sum_j e^{z_{jk}}} \approx \frac{1}{N}",
    first_check="Sum the outputs over the classes and over the batch. Or run one image alone and again within a batch: "
    "its outputs must be the same.",
    remedy="Pass the logits to cross_entropy. Where you need probabilities, write dim=-1 or dim=1; a softmax without "
    "dim chooses an axis by the number of dimensions.",
    reference="Humbatova et al., Taxonomy of Real Faults in Deep Learning Systems (2020)",
    looks="never moves",
    shows="probe_loss",
    knobs=(
        Knob("lr", (0.01, 10.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("batch_size", (16, 512), log=True),
        Knob("steps", (100, 1000)),
    ),
    also_causes=("learning_rate_too_low", "plateau"),
    where=("outputs",),
)
