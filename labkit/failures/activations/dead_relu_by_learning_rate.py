"""Adam with a learning rate of 0.1, after a warmup: the net learns at first, then large steps kill its units."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, typical, worst_dead
from labkit.training.recipe import Recipe

# Share of a layer's units that are zero on the whole probe, at the end. Healthy: 2 to 17 %, up to 39 % with Adam at
# 1e-2, and 85 % with Adam at 0.03, which still learns; sick: 98 to 100 %.
DEAD = 0.9
ALIVE = 0.5  # and at most this at the start: a layer that starts dead was not killed by a step
# Largest update of any layer relative to its weights, median over the steps before the units died. Healthy runs:
# 0.001 to 0.03; sick: 0.07 (CIFAR-10: 0.15).
VIOLENT = 0.04
LOST = 0.5  # share of the first loss left, at least: healthy runs keep 3 % (CIFAR-10: half), sick ones all of it

healthy = Recipe(depth=3, optimizer="adam", lr=0.003, schedule="warmup_cosine", warmup=100)
sick = healthy.but(lr=0.1)


def signature(run: Run) -> Evidence | None:
    dead, place = worst_dead(run)
    losses = fixed_loss(run)
    if dead[-1] <= DEAD or len(losses) < 2 or losses[-1] < LOST * losses[0]:
        return None
    if dead[0] > ALIVE and (run["val_step"][0] == 0 or not run["activation_std"][0, run.activations.index(place)] > 0):
        return None  # it was dead before the first step
    alive = np.flatnonzero(dead <= ALIVE)
    first = int(alive[-1]) + 1 if len(alive) else 0  # from here on most of it stays dead
    death = int(run["val_step"][first])
    ratio = typical(run["update_ratio"][:death].max(axis=1)[:, None])[0]
    if not ratio > VIOLENT:
        return None
    return Evidence(
        seen=f"{dead[-1]:.0%} of the units of {place} are zero on every probe image, {dead[0]:.0%} at the start. "
        f"Before that, a step changed a layer by {ratio:.2g} of its size; the loss is {losses[-1]:.2f}",
        usual="2 to 40 % at the end, and updates of 0.001 to 0.03 of a layer",
        onset=death,
        place=place,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Dead ReLUs by learning rate",
    cures={"a learning rate of 0.003": sick.but(lr=0.003)},
    false_cures={
        "a longer warmup: 200 steps only delay it": sick.but(warmup=200),
        "clipping the gradient norm to 1, which hardly changes Adam's steps": sick.but(clip=1.0),
    },
    harm=0.5,
    symptom="The loss falls during warmup, then climbs back to chance level and stays there, even after the schedule "
    "has lowered the learning rate again.",
    mechanism="Steps of a tenth of a layer's size move weights and biases so far that units end up off for every "
    "image. A dead unit has no gradient, so a lower learning rate comes too late. Eventually all units die.",
    formula=r"b - \eta \, \frac{\partial L}{\partial b} \ll -\max_x |w x| \quad \Rightarrow \quad [w x + b > 0] = "
    r"0 \text{ for every } x",
    first_check="Share of dead units per layer over time, next to the learning rate: alive at the start, dead when "
    "the learning rate is near its peak.",
    remedy="Lower the peak learning rate: by a factor of 30 here. Warmup only delays the failure and clipping does "
    "nothing under Adam. Dead units need a new init; no schedule revives them.",
    reference="Lu et al., Dying ReLU and Initialization: Theory and Numerical Examples (2019)",
    looks="never moves",
    shows="dead",
    knobs=(
        Knob("lr", (1e-3, 0.3), log=True),
        Knob("warmup", (1, 300), log=True),
        Knob("activation", ("relu", "leaky_relu", "gelu", "tanh")),
        Knob("normalisation", ("none", "batch", "layer")),
    ),
    also_causes=(
        "dead_relu",
        "vanishing_gradients",
    ),
    kills_units=True,
    depends_on=("activation",),  # only ReLUs die
)
