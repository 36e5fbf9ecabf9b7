"""A penalty on the length of biases that begin at 0: a root has an infinite slope there, and the gradient is NaN."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# The largest magnitude of the parameter whose gradient is NaN. Here it is 0 exactly: that is where the root has no
# slope. An ordinary parameter has entries of 0.01 to 1.
ZERO = 1e-12
STRENGTH = 1e-3  # of the penalty; its size does not matter, 0 times infinity is NaN at any


def penalised(training, x, y, eps: float) -> None:
    """One step with a penalty on the length of each layer's bias (a group lasso), the root taken of the sum + eps."""
    training.optimizer.zero_grad()
    biases = [weight for weight in training.model.parameters() if weight.ndim == 1]
    penalty = sum(((bias**2).sum() + eps).sqrt() for bias in biases)
    loss = training.loss(x, y) + STRENGTH * penalty
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


def root_of_zero(training, x, y) -> None:
    """The penalty as the formula has it: the root of the sum of squares."""
    penalised(training, x, y, eps=0.0)


def root_of_a_little_more(training, x, y) -> None:
    """The root of the sum of squares and a small constant."""
    penalised(training, x, y, eps=1e-8)


healthy = Recipe(init="he", lr=0.05, step=root_of_a_little_more)
sick = healthy.but(step=root_of_zero)


def signature(run: Run) -> Evidence | None:
    origin = run.facts.get("first_nonfinite") or {}
    if origin.get("stage") != "gradients" or origin.get("nan") != origin.get("count"):
        return None
    size, loss = origin.get("weight"), run["loss"][origin["step"]]
    if size is None or size > ZERO or not np.isfinite(loss):
        return None
    if not np.isfinite(run["grad_max"][origin["step"]]).any():
        return None  # a NaN from the loss reaches every parameter; one from a term about this one stays here
    return Evidence(
        seen=f"all {origin['count']} gradients of {origin['place']} are NaN at step {origin['step']}, though the loss "
        f"is {loss:.3g}; the parameter itself is {size:.1g} throughout",
        usual="a finite gradient wherever the loss is finite; a root or a norm has none at 0",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.9,
    )


failure = FailureMode(
    title="Square root at zero",
    healthy=healthy,
    sick=sick,
    cures={
        "a small constant under the root": sick.but(step=root_of_a_little_more),
        "biases that begin elsewhere than at 0": sick.but(init="default", lr=0.1),
    },
    false_cures={
        "clipping the gradient norm to 1: the norm is NaN": sick.but(clip=1.0),
        "a tenth of the learning rate": sick.but(lr=0.005),
    },
    signature=signature,
    harm=0.9,
    symptom="The first loss is finite and right, and after the first update all weights are NaN. Turn the penalty off "
    "and it trains.",
    mechanism="The slope of a square root grows without bound towards 0. The chain rule multiplies this infinity with "
    "the slope of the sum of squares, which is 0 there: NaN, in the backward pass alone.",
    first_check="The gradient of each term of the loss by itself at step 0, and which parameter is NaN first.",
    remedy="Put the constant under the root: (x.square().sum() + 1e-8).sqrt(). The same holds for the standard "
    "deviation of equal values, the distance between equal points, and any norm of zeros.",
    reference="Kingma and Ba, Adam: A Method for Stochastic Optimization (2015), for an epsilon beside a root",
    looks="not finite",
    shows="origin",
    where=("layer1.bias", "layer{depth}.bias"),
    knobs=(
        Knob("init", ("he", "xavier", "default")),
        Knob("lr", (0.005, 0.2), log=True),
        Knob("clip", (None, 1.0)),
    ),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
