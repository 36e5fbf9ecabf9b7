"""A learning rate four percent too high for the curvature: every update lands on the opposite wall, a little higher."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

WINDOW = 30  # last steps that are used; the chance that noise alternates through all of them is one in a billion
# Share of these steps at which a tensor's mean gradient changes its sign. Here all of them; shuffled batches: half.
TURNS = 0.9
RISE = 1.3  # the smoothed loss at the end over its lowest. Healthy runs end near their lowest, this one at 2.4 times.
BEYOND = 1.9  # learning rate times curvature: at 2 an update ends as high on the opposite wall. Here 2.08.

# Least squares with one layer: the loss is exactly quadratic, with a curvature of 50.8 everywhere.
healthy = Recipe(depth=1, loss="mean_squared_error", samples=1000, batch_size=1000, lr=0.03, steps=150)
sick = healthy.but(lr=0.041)


def signature(run: Run) -> Evidence | None:
    losses, means = run.smoothed(), run["grad_mean"][-WINDOW:]
    if len(means) < WINDOW or not np.isfinite(losses).all() or not np.isfinite(means).all():
        return None
    turns = (means[1:] * means[:-1] < 0).mean(axis=0)
    place, curvature = int(np.argmax(turns)), run.facts.get("top_eigenvalue")
    lowest = int(np.argmin(losses))
    if turns[place] < TURNS or losses[-1] < RISE * losses[lowest] or curvature is None:
        return None
    reach = float(run["lr"][-1]) * curvature
    if not reach > BEYOND:  # NaN too
        return None
    return Evidence(
        seen=f"the gradient of {run.parameters[place]} changes its sign at {turns[place]:.0%} of the last steps, and "
        f"the loss rose from {losses[lowest]:.2g} to {losses[-1]:.2g}; learning rate times curvature is {reach:.2f}",
        usual="below 2, where updates stay on their side of the valley, and signs that change at half of the steps",
        onset=lowest,
        place=run.parameters[place],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Zigzag in a sharp valley",
    cures={
        "a learning rate of 0.03, below 2 / curvature": sick.but(lr=0.03),
        "momentum 0.9, which cancels opposite steps": sick.but(momentum=0.9),
        "inputs from 0 to 1, which make the valley a sixth as steep": sick.but(inputs="unit"),
    },
    false_cures={"batches of 100: the zigzag comes from the curvature, not from the data": sick.but(batch_size=100)},
    harm=0.4,
    symptom="The loss falls at first and then rises smoothly, step by step, without a jump; each gradient points "
    "against the previous one.",
    mechanism="The curvature is about fifty across the valley and almost 0 along it. A learning rate above "
    "2 / curvature overshoots to a higher point of the opposite wall, so the oscillation grows and drowns the progress "
    "along the valley.",
    formula=r"|1 - \eta \lambda| > 1 \quad \text{if } \eta > \frac{2}{\lambda}",
    first_check="The sign of one gradient over consecutive steps, and the learning rate times the top Hessian "
    "eigenvalue: above 2 training diverges.",
    remedy="Lower the learning rate below 2 / top eigenvalue: here three quarters of it is enough. Scaling the inputs "
    "makes the valley rounder, and momentum 0.9 nearly doubles the largest stable learning rate.",
    reference="Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability (2021)",
    looks="stops too high",
    shows="grad_mean",
    knobs=(
        Knob("lr", (0.005, 0.042), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("inputs", ("normalised", "unit")),
        Knob("batch_size", (100, 1000)),
        Knob("steps", (50, 200)),
    ),
    learned={"mnist": 0.7},
    not_on_cifar10="the learning rate must be a few percent above 2 / curvature; on CIFAR-10 the healthy 0.03 diverges",
)
