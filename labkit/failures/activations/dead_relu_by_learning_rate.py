"""A learning rate of 0.1 under Adam, reached by a gentle warmup: the net learns, and then the steps kill its units."""

import numpy as np

from labkit.failure_mode import Evidence, FailureMode, Knob
from labkit.readings import fixed_loss, worst_dead
from labkit.recipe import Recipe
from labkit.run import Run

DEAD = 0.9
ALIVE = 0.5
VIOLENT = 0.1
LOST = 0.5

healthy = Recipe(depth=3, optimizer="adam", lr=0.003, schedule="warmup_cosine", warmup=100)
sick = healthy.but(lr=0.1)


def signature(run: Run) -> Evidence | None:
    dead, place = worst_dead(run)
    losses = fixed_loss(run)
    if dead[0] > ALIVE or dead[-1] <= DEAD or len(losses) < 2 or losses[-1] < LOST * losses[0]:
        return None
    first = int(np.flatnonzero(dead <= ALIVE)[-1]) + 1  # from here on most of it stays dead
    death = int(run["val_step"][first])
    ratio = run["update_ratio"][:death].max(axis=1)
    if not np.max(ratio, initial=0.0, where=np.isfinite(ratio)) > VIOLENT:
        return None
    return Evidence(
        seen=f"{dead[-1]:.0%} of the units of {place} are silent on every probe image; {dead[0]:.0%} were at the start, "
        f"and steps of up to {np.max(ratio):.2g} times a layer's size came between; loss {losses[-1]:.2g}",
        usual="2 to 40 % at the end, and updates of 0.001 to 0.2 of a layer",
        onset=death,
        place=place,
    )


failure = FailureMode(
    title="Dead ReLUs by learning rate",
    healthy=healthy,
    sick=sick,
    cures={"a learning rate of 0.003": sick.but(lr=0.003)},
    false_cures={},
    signature=signature,
    harm=0.5,
    symptom="a.",
    mechanism="a.",
    first_check="a.",
    remedy="a.",
    reference="Lu et al., Dying ReLU and Initialization: Theory and Numerical Examples (2019)",
    shows="dead",
    knobs=(
        Knob("lr", (1e-3, 0.3), log=True),
    ),
    also_causes=("dead_relu",),
)
