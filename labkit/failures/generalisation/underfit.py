"""Two hidden units for ten digits: the net does what it can, on seen and unseen images alike, and it is not much."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import typical
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

NARROW = 1.0  # values in the narrowest hidden layer over values in the output. Here 0.2; healthy nets: 3 and more.
HIGH = 0.5  # training loss as a share of ln(classes), at the end. Healthy: 0.02 to 0.1; two units: 0.6.
GAP = 0.16  # validation minus training loss, in nats. Two units: 0.03 to 0.12; healthy photographs: 0.45 and more.
LEVEL = 0.06  # fall of the training loss over the last third. Two units: 0 to 4 %; healthy runs: 11 to 60 %.
LEARNED = 0.1  # fall of the training loss over the whole run: it has learned what it could
MOVES = 1e-3  # median update as a share of the layer: the optimizer is at work

healthy = Recipe(activation="tanh", optimizer="adam", lr=0.005)
sick = healthy.but(width=2)


def narrowest(run: Run) -> tuple[float, str]:
    """How many values the narrowest hidden layer has for each one of the output, and its name; from the histograms."""
    values = run["histogram"][-1].sum(axis=-1)
    hidden = values[1:-1]
    if not len(hidden) or not values[-1] > 0 or not np.isfinite(values).all():
        return np.inf, ""
    place = int(np.argmin(hidden))
    return float(hidden[place] / values[-1]), run.activations[1 + place]


def signature(run: Run) -> Evidence | None:
    losses, steps = run["probe_loss"], run["val_step"]
    narrow, place = narrowest(run)
    if not narrow < NARROW:
        return None
    if not np.isfinite([*losses, run["val_loss"][-1]]).all() or steps[-1] < 30:
        return None
    third = int(np.searchsorted(steps, steps[-1] * 2 / 3))
    with np.errstate(all="ignore"):
        high = losses[-1] / np.log(run.facts.get("classes", 10))
        level, learned = 1 - losses[-1] / losses[third], 1 - losses[-1] / losses[0]
    if high < HIGH or abs(run.gap[-1]) > GAP or not abs(level) < LEVEL or not learned > LEARNED:
        return None
    moves = typical(run["update_ratio"]).max()
    if not moves > MOVES:
        return None
    return Evidence(
        seen=f"training loss {losses[-1]:.2f} and validation loss {run['val_loss'][-1]:.2f}, both level for the last "
        f"third of the run; {place} has {narrow:.1g} times as many units as there are answers",
        usual="3 or more, and a training loss that still falls",
        onset=int(steps[third]),
        place=place,
        confidence=0.8,
    )


failure = FailureMode(
    title="Underfitting",
    healthy=healthy,
    sick=sick,
    cures={"128 hidden units": sick.but(width=128)},
    false_cures={
        "twice as many steps": sick.but(steps=800),
        "one more layer of two units": sick.but(depth=3),
    },
    signature=signature,
    harm=0.5,
    symptom="Training and validation loss come down together, level off together, and both stay high. Gradients and "
    "updates look fine.",
    mechanism="All that the last layer learns of an image are two numbers, and ten digits do not lie apart in a plane. "
    "No optimizer finds a function that the net cannot express.",
    first_check="Training accuracy, before any thought of regularisation: low and level, with a gap of almost nothing.",
    remedy="A larger net: more units first, more layers afterwards. More data and more steps do not help a net that "
    "is full.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 5.2",
    looks="stops too high",
    shows="gap",
    where=("{activation}1",),
    knobs=(
        Knob("width", (1, 128), log=True),
        Knob("depth", (2, 5)),
        Knob("activation", ("tanh", "leaky_relu", "relu")),
        Knob("lr", (1e-3, 0.03), log=True),
        Knob("steps", (200, 800)),
    ),
    cifar10={"lr": 0.003},  # 0.005 is too high for these larger inputs
)
