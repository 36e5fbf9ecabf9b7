"""Five tanh layers with weights a little too small: nearly level ground, crossed at a crawl before the descent."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import flat_start, matrix_layers, typical
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

LONG = 60  # steps within 2 % of the first loss. Healthy runs here leave within 10, N(0, 0.05) needs 120 to 215.
ESCAPED = 0.9  # of its first value, the loss at the end: only a descent afterwards proves that there was a way down
SLOPE = 0.4  # gradient norm on the flat over its later peak. Healthy runs have no flat; here it is 0.09 to 0.13.
# The first layer's gradient at the end of the flat over its first: 2 to 8 here, 1e5 at a saddle.
GROWTH = 100
MOVES = 1e-3  # median update as a share of the layer, on the flat: the steps are of usual size, 0.01 in the last layer

healthy = Recipe(depth=5, width=32, activation="tanh", init="xavier", momentum=0.0, steps=300)
sick = healthy.but(init="normal", init_scale=0.05)


def signature(run: Run) -> Evidence | None:
    flat, losses = flat_start(run), run.smoothed()
    slopes, first = run["grad_norm_total"], matrix_layers(run, "grad_norm")[0][:flat, 0]
    if not (LONG <= flat < len(run)) or not np.isfinite([*losses, *slopes]).all() or not (first > 0).all():
        return None
    slope, later = float(np.median(slopes[:flat])), float(slopes[flat:].max())
    growth = np.median(first[-5:]) / np.median(first[:5])
    moves = typical(run["update_ratio"][:flat]).max()
    if losses[-1] > ESCAPED * losses[0] or slope > SLOPE * later or growth > GROWTH or moves < MOVES:
        return None
    return Evidence(
        seen=f"{flat} steps on the flat at loss {losses[0]:.2f}, with a gradient norm of {slope:.2g}; "
        f"beyond it the norm reaches {later:.2g} and the loss falls to {losses[-1]:.2f}",
        usual="a loss that falls by more than 2 % within 10 steps",
        onset=0,
    )


failure = FailureMode(
    title="Plateau",
    healthy=healthy,
    sick=sick,
    # Momentum 0.9 and Adam at 0.003 cross the flat, too, and end 1 to 3 and 1 to 5 points below the twin (5 seeds).
    cures={"Xavier init": sick.but(init="xavier", init_scale=1.0)},
    false_cures={"clipping the gradient norm to 1, which is never reached": sick.but(clip=1.0)},
    signature=signature,
    harm=0.3,
    symptom="The loss hardly moves for half of the run, with small but living gradients in every layer; then it falls "
    "by itself, too late.",
    mechanism="Each layer shrinks what it passes on, so the outputs hardly depend on the image and no direction is "
    "much better than another. Steps of usual size have to cross this flat ground one by one.",
    first_check="Loss and gradient norm together: a flat loss with a gradient far below its later peak is a plateau, "
    "not the end of learning.",
    remedy="Draw the weights so that each layer keeps the scale. Momentum or Adam cross the flat sooner, but the "
    "steps spent on it are lost. Do not take the first flat stretch for convergence.",
    reference="Dauphin et al., Identifying and attacking the saddle point problem in high-dimensional non-convex "
    "optimization (2014)",
    looks="stops too high",
    shows="grad_norm_total",
    knobs=(
        Knob("init_scale", (0.03, 0.3), log=True),
        Knob("init", ("normal", "xavier")),
        Knob("momentum", (0.0, 0.9)),
        Knob("optimizer", ("sgd", "adam")),
        Knob("lr", (0.003, 0.5), log=True),
        Knob("depth", (2, 8)),
    ),
)
