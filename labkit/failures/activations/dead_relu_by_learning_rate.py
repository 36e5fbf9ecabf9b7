"""A learning rate of 0.1 under Adam, reached by a gentle warmup: the net learns, and then the steps kill its units."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss, typical, worst_dead
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of a layer's units silent on the whole probe, at the end. Healthy: 2 to 17 %, up to 39 % with Adam at 1e-2, and
# 85 % at Adam 0.03, which still learns; sick: 98 to 100 %.
DEAD = 0.9
ALIVE = 0.5  # and at the start at most so many: a layer that begins dead was not killed by a step
# Median over the steps before the death of the largest update of any layer, as a share of the layer. Healthy runs:
# 0.001 to 0.03; sick: 0.07 (CIFAR-10: 0.15).
VIOLENT = 0.04
LOST = 0.5  # of the first loss is left at least: healthy runs keep 3 % (CIFAR-10: half), sick ones all of it

healthy = Recipe(depth=3, optimizer="adam", lr=0.003, schedule="warmup_cosine", warmup=100)
sick = healthy.but(lr=0.1)


def signature(run: Run) -> Evidence | None:
    dead, place = worst_dead(run)
    losses = fixed_loss(run)
    if dead[0] > ALIVE or dead[-1] <= DEAD or len(losses) < 2 or losses[-1] < LOST * losses[0]:
        return None
    first = int(np.flatnonzero(dead <= ALIVE)[-1]) + 1  # from here on most of it stays dead
    death = int(run["val_step"][first])
    ratio = typical(run["update_ratio"][:death].max(axis=1)[:, None])[0]
    if not ratio > VIOLENT:
        return None
    return Evidence(
        seen=f"{dead[-1]:.0%} of the units of {place} are silent on every probe image, {dead[0]:.0%} at the start. "
        f"Until they died a step changed a layer by {ratio:.2g} of its size; the loss is {losses[-1]:.2f}",
        usual="2 to 40 % at the end, and updates of 0.001 to 0.03 of a layer",
        onset=death,
        place=place,
    )


failure = FailureMode(
    title="Dead ReLUs by learning rate",
    healthy=healthy,
    sick=sick,
    cures={"a learning rate of 0.003": sick.but(lr=0.003)},
    false_cures={
        "a longer warmup: 200 steps postpone the death": sick.but(warmup=200),
        "clipping the gradient norm to 1, which Adam does not notice": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.5,
    symptom="The loss falls while the rate warms up, then climbs back to chance level and stays there, flat, "
    "even after the schedule has brought the rate down again.",
    mechanism="Steps of a tenth of a layer's size throw weights and biases about until a unit is off for every image. "
    "From then on it has no gradient and a lower rate comes too late; one after the other all go the same way.",
    first_check="Share of silent units per layer over time, beside the learning rate: alive at the start, dead when "
    "the rate is near its peak.",
    remedy="Lower the peak rate: by thirty here. Warmup only postpones the death and clipping does nothing under Adam; "
    "dead units have to be drawn anew, no schedule brings them back.",
    reference="Lu et al., Dying ReLU and Initialization: Theory and Numerical Examples (2019)",
    looks="never moves",
    shows="dead",
    knobs=(
        Knob("lr", (1e-3, 0.3), log=True),
        Knob("warmup", (1, 300), log=True),
        Knob("activation", ("relu", "leaky_relu", "gelu", "tanh")),
        Knob("normalisation", ("none", "batch", "layer")),
    ),
    also_causes=("dead_relu", "vanishing_gradients"),
)
