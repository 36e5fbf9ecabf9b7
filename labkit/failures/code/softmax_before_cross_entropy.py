"""A softmax at the end of the net, and another inside cross_entropy: the loss cannot fall below 1.46."""

import math

import numpy as np
from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import models
from labkit.training.recipe import Recipe

# The outputs of one image add up to 1, so their mean is 1 / classes up to rounding (1e-7 of it). The mean of healthy
# logits varies by 0.01 to 1.
ROUNDING = 1e-5

healthy = Recipe(depth=3, steps=200)


def mlp_with_softmax(recipe, data) -> nn.Module:
    """The plain net, but it outputs probabilities instead of logits."""
    net = models.mlp(recipe, data)
    net.append(nn.Softmax(dim=1))
    return net


sick = healthy.but(model=mlp_with_softmax)


def signature(run: Run) -> Evidence | None:
    means, losses = run["activation_mean"][:, -1], run["loss"]
    # Where labels are not one for each sample, as for tokens, the outputs tell: their mean is 1 / classes.
    classes = run.facts.get("classes") or (round(1 / means[0]) if 0 < means[0] < 1 else 0)
    if classes < 2 or not np.isfinite(losses).all():
        return None
    floor = math.log(math.e + classes - 1) - 1
    low, high = run["histogram_range"][:, -1].T
    if not (np.abs(means * classes - 1) < ROUNDING).all() or low.min() < 0 or high.max() > 1 + ROUNDING:
        return None
    if losses.min() < floor - ROUNDING or losses.max() > floor + 1 + ROUNDING:  # a loss meant for probabilities
        return None
    return Evidence(
        seen=f"every output lies between 0 and 1 with a mean of {means[-1]:.5f}, that is 1 / {classes}, and the loss "
        f"never went below {losses.min():.3f}; {floor:.3f} is the lowest possible",
        usual="logits of -10 to 10, and a loss that falls towards 0",
        onset=0,
        place="outputs",
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Softmax before cross entropy",
    cures={"logits passed directly to cross_entropy": sick.but(model="mlp")},
    false_cures={
        "ten times the learning rate: 92 %, but a loss of 1.5": sick.but(lr=1.0),
        "Adam: 75 %": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.1,
    symptom="The loss starts at ln 10 as it should, falls slowly, and ends near 1.5 regardless of the accuracy. "
    "Gradients are about ten times too small.",
    mechanism="cross_entropy applies a softmax of its own. Given probabilities, it sees logits that differ by at most "
    "1, so the most confident prediction still counts as e / (e + 9): the loss ends at 1.461, and the derivatives of "
    "two softmaxes multiply.",
    formula=r"L \geq -\ln \frac{e}{e + 9} \approx 1.46",
    first_check="The net's outputs on a few images: logits have any sign and size, probabilities add up to 1.",
    remedy="Remove the softmax from the net and pass the logits to cross_entropy; use softmax only to show "
    "probabilities. log_softmax before cross_entropy is harmless: twice equals once.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 6.2.2.3",
    looks="stops too high",
    shows="probe_loss",
    knobs=(Knob("lr", (0.01, 1.0), log=True), Knob("optimizer", ("sgd", "adam")), Knob("steps", (100, 1000))),
    also_causes=("plateau",),
)
