"""A penalty on the norm of biases that start at 0: the square root has an infinite derivative there, so NaN."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

# The largest magnitude of the parameter whose gradient is NaN. Here it is exactly 0, where the square root has
# no derivative. An ordinary parameter has entries of 0.01 to 1.
ZERO = 1e-12
STRENGTH = 1e-3  # of the penalty; its size does not matter, 0 times infinity is always NaN


def penalised(training, x, y, eps: float) -> None:
    """One step with a penalty on the norm of each layer's bias (a group lasso), the square root of sum + eps."""
    training.optimizer.zero_grad()
    biases = [weight for weight in training.model.parameters() if weight.ndim == 1]
    penalty = sum(((bias**2).sum() + eps).sqrt() for bias in biases)
    loss = training.loss(x, y) + STRENGTH * penalty
    training.backward(loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


def sqrt_of_zero(training, x, y) -> None:
    """The penalty as the formula is written: the square root of the sum of squares."""
    penalised(training, x, y, eps=0.0)


def sqrt_with_eps(training, x, y) -> None:
    """The square root of the sum of squares plus a small constant."""
    penalised(training, x, y, eps=1e-8)


healthy = Recipe(init="he", lr=0.05, step=sqrt_with_eps)
sick = healthy.but(step=sqrt_of_zero)


def everywhere(run: Run, origin: dict) -> Evidence:
    """A finite loss whose gradient is NaN in every parameter, and finite at the outputs: another term of the loss."""
    loss = run["loss"][run.row_of(origin["step"])]
    return Evidence(
        seen=f"every gradient is NaN at step {origin['step']}, though the loss is {loss:.3g}, with a finite gradient "
        "at the outputs",
        usual="a finite gradient wherever the loss is finite; a square root or a norm has none at 0",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.7,
    )


def is_first_in_gradients(run: Run, origin: dict) -> bool:
    """Is the loss of that step finite, and the gradient of every parameter that has one NaN?"""
    row = run.row_of(origin["step"])
    means, silent = run["grad_mean"][row], run.facts.get("without_gradient", ())  # the latter are frozen
    reached = means[[name not in silent for name in run.parameters]] if silent else means
    return bool(len(reached) and np.isfinite(run["loss"][row]) and np.isnan(reached).all())


def signature(run: Run) -> Evidence | None:
    origin = run.facts.get("first_nonfinite") or {}
    if origin and "count" not in origin and is_first_in_gradients(run, origin):  # its replay found nothing else
        return everywhere(run, origin)
    if origin.get("stage") != "gradients" or origin.get("nan") != origin.get("count"):
        return None
    size, loss = origin.get("weight"), run["loss"][run.row_of(origin["step"])]
    if size is None or not np.isfinite(loss):
        return None
    if is_first_in_gradients(run, origin):
        return everywhere(run, origin)
    if size > ZERO:
        return None
    return Evidence(
        seen=f"all {origin['count']} gradients of {origin['place']} are NaN at step {origin['step']}, though the loss "
        f"is {loss:.3g}; every entry of the parameter is {size:.1g}",
        usual="a finite gradient wherever the loss is finite; a square root or a norm has none at 0",
        onset=origin["step"],
        place=origin["place"],
        confidence=0.9,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Square root at zero",
    cures={
        "a small constant under the square root": sick.but(step=sqrt_with_eps),
        "biases that do not start at 0": sick.but(init="default", lr=0.1),
    },
    false_cures={
        "clipping the gradient norm to 1: the norm is NaN": sick.but(clip=1.0),
        "a tenth of the learning rate": sick.but(lr=0.005),
    },
    harm=0.9,
    symptom="The first loss is finite and correct; after the first update all weights are NaN. Without the penalty it "
    "trains.",
    mechanism="The derivative of a square root is infinite at 0. The chain rule multiplies it by the derivative of the "
    "sum of squares, which is 0 there: NaN, in the backward pass only.",
    formula=r"\frac{\mathrm{d}}{\mathrm{d} x} \sqrt{x^2} = \frac{1}{2 \sqrt{x^2}} \cdot 2 x \to \infty \cdot 0 = "
    r"\mathrm{NaN} \quad \text{at } x = 0",
    first_check="The gradient of each loss term separately at step 0, and which parameter is NaN first.",
    remedy="Put a constant under the root: (x.square().sum() + 1e-8).sqrt(). The same applies to the standard "
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
)
