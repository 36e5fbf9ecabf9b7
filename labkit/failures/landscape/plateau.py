"""Five tanh layers with slightly too small weights: training crosses an almost flat region before the loss falls."""

import numpy as np

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import flat_start
from labkit.recording.run import Run
from labkit.recording.summaries import matrix_layers, typical
from labkit.training.recipe import Recipe

LONG = 60  # steps within 2 % of the first loss. Healthy runs need at most 10, N(0, 0.05) needs 120 to 215.
ESCAPED = 0.9  # the loss at the end over its first value: only a later descent proves that there was a way down
WEAK = 0.4  # gradient norm on the plateau over its later peak. Healthy runs have no plateau; here it is 0.09 to 0.13.
# The first layer's gradient at the end of the plateau over its first: 2 to 8 here, 1e5 at a saddle point.
GROWTH = 100
MOVES = 1e-3  # median update as a share of the layer, on the plateau: of the usual size, 0.01 in the last layer

healthy = Recipe(depth=5, width=32, activation="tanh", init="xavier", steps=300)
sick = healthy.but(init="normal", init_scale=0.05)


def signature(run: Run) -> Evidence | None:
    flat, losses = flat_start(run), run.smoothed()
    norms, first = run["grad_norm_total"], matrix_layers(run, "grad_norm")[0][:flat, 0]
    if not (LONG <= flat < len(run)) or not np.isfinite([*losses, *norms]).all() or not (first > 0).all():
        return None
    weak, later = float(np.median(norms[:flat])), float(norms[flat:].max())
    growth = np.median(first[-5:]) / np.median(first[:5])
    moves = typical(run["update_ratio"][:flat]).max()
    if losses[-1] > ESCAPED * losses[0] or weak > WEAK * later or growth > GROWTH or moves < MOVES:
        return None
    return Evidence(
        seen=f"{flat} steps on a plateau at loss {losses[0]:.2f}, with a gradient norm of {weak:.2g}; "
        f"after it the norm reaches {later:.2g} and the loss falls to {losses[-1]:.2f}",
        usual="a loss that falls by more than 2 % within 10 steps",
        onset=0,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Plateau",
    # Momentum 0.9 and Adam at 0.003 cross the plateau too, but end 1 to 3 and 1 to 5 points below the twin (5 seeds).
    cures={"Xavier init": sick.but(init="xavier", init_scale=1.0)},
    false_cures={"clipping the gradient norm to 1, which is never reached": sick.but(clip=1.0)},
    harm=0.3,
    symptom="The loss hardly moves for half of the run, though every layer receives small gradients; then it falls by "
    "itself, too late.",
    mechanism="Each layer shrinks the signal, so the outputs hardly depend on the image and no direction is much "
    "better than another. Updates of the usual size have to cross this flat region step by step.",
    formula=r"\lVert \nabla L \rVert \approx 0, \qquad t \sim \frac{\text{width of the plateau}}{\eta \, \lVert "
    r"\nabla L \rVert}",
    first_check="Loss and gradient norm together: a flat loss with a gradient far below its later peak is a plateau, "
    "not convergence.",
    remedy="Use an init that keeps the scale in each layer. Momentum or Adam cross the plateau sooner, but the "
    "steps spent on it are lost. Do not mistake the first flat stretch for convergence.",
    reference="Dauphin et al., Identifying and attacking the saddle point problem in high-dimensional non-convex "
    "optimization (2014)",
    looks="stops too high",
    shows="grad_norm_total",
    also_causes=("learning_rate_left_low",),
    knobs=(
        Knob("init_scale", (0.03, 0.3), log=True),
        Knob("init", ("normal", "xavier")),
        Knob("momentum", (0.0, 0.9)),
        Knob("optimizer", ("sgd", "adam")),
        Knob("lr", (0.003, 0.5), log=True),
        Knob("depth", (2, 8)),
    ),
    classic=ClassicCurve(3, "plateaus, then falls"),
)
