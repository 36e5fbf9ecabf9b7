"""A step four per cent longer than the valley allows: every update lands on the other wall, a little higher."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

WINDOW = 30  # last steps that are looked at; the chance that noise alternates through all of them is one in a billion
# Share of these steps at which a tensor's mean gradient changes its sign. Here every one; shuffled batches: a half.
TURNS = 0.9
RISE = 1.3  # the smoothed loss at the end over its lowest. Healthy runs end near their lowest, this one at 2.4 times.
BEYOND = 1.9  # learning rate times curvature: at 2 a step ends as high on the other wall. Here 2.08.

# Least squares with one layer: the loss is a true quadratic, with a curvature of 50.8 wherever the weights are.
healthy = Recipe(depth=1, loss="mean_squared_error", samples=1000, batch_size=1000, momentum=0.0, lr=0.03, steps=150)
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
        usual="below 2: a step that stays on its side of the valley, and signs that change at half of the steps",
        onset=lowest,
        place=run.parameters[place],
    )


failure = FailureMode(
    title="Zigzag in a sharp valley",
    healthy=healthy,
    sick=sick,
    cures={
        "a learning rate of 0.03, below 2 over the curvature": sick.but(lr=0.03),
        "momentum 0.9, which lets opposite steps cancel": sick.but(momentum=0.9),
        "inputs from 0 to 1, which make the valley a sixth as steep": sick.but(inputs="unit"),
    },
    false_cures={"batches of 100: the zigzag is in the curvature, not in the data": sick.but(batch_size=100)},
    signature=signature,
    harm=0.4,
    symptom="The loss falls at first and then rises smoothly, step after step, without a jump; each gradient points "
    "against the one before.",
    mechanism="Across the valley the loss curves fifty times, along it hardly at all. A step longer than 2 over the "
    "curvature overshoots to a higher point of the other wall, so the swing grows while progress along the valley "
    "is drowned.",
    first_check="The sign of one gradient over neighbouring steps, and the learning rate times the top Hessian "
    "eigenvalue: above 2 there is no way down.",
    remedy="Lower the learning rate below 2 over the top eigenvalue: here three quarters of it is enough. Scaling the "
    "inputs makes the valley rounder, and momentum 0.9 nearly doubles the rate that is stable.",
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
    cifar10="The rate must lie a few per cent above 2 over the curvature; on photographs the healthy 0.03 diverges.",
)
