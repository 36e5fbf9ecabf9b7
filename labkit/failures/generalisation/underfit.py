"""Two hidden units for ten digits: the net is too small, and training and validation loss both stay high."""

import itertools

import numpy as np

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import first_weights, left_over
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, typical
from labkit.training.recipe import Recipe

NARROW = 1.0  # units in the narrowest hidden layer over outputs. Here 0.2; healthy nets: 3 and more.
HIGH = 0.5  # training loss as a share of ln(classes), at the end. Healthy: 0.02 to 0.1; two units: 0.6.
GAP = 0.16  # validation minus training loss, in nats. Two units: 0.03 to 0.12; healthy photographs: 0.45 and more.
LEVEL = 0.06  # fall of the training loss over the last third. Two units: 0 to 4 %; healthy runs: 11 to 60 %.
LEARNED = 0.1  # fall of the training loss over the whole run: it has learned what it can
MOVES = 1e-3  # median update as a share of the layer: the optimizer is working
# A layer with at most this many units before one with at least WIDER times as many, and what is left of the loss of a
# constant prediction. Small healthy programs of every task have 4 units and more (the code of an autoencoder) and 0.01
# to 0.46 left; a bottleneck of one unit 0.5 to 0.99.
FEW, WIDER, LEFT = 2, 4, 0.47

healthy = Recipe(activation="tanh", optimizer="adam", lr=0.005)
sick = healthy.but(width=2)


def narrowest(run: Run) -> tuple[float, str]:
    """Units in the narrowest hidden layer per output, and the layer's name; from the histograms."""
    values = run["histogram"][-1].sum(axis=-1)
    hidden = values[1:-1]
    if not len(hidden) or not values[-1] > 0 or not np.isfinite(values).all():
        return np.inf, ""
    place = int(np.argmin(hidden))
    return float(hidden[place] / values[-1]), run.activations[1 + place]


def bottleneck(run: Run) -> Evidence | None:
    """For any task: does everything pass through one or two units, and is too much of the loss left?"""
    units, inputs = first_weights(run, "units"), first_weights(run, "inputs")
    pairs = itertools.pairwise(units.items())
    # The next layer must take these units alone: one that scores positions for attention, or a gate, is no bottleneck.
    found = [name for (name, few), (then, many) in pairs if inputs.get(then, few) == few <= FEW and many >= WIDER * few]
    if not found or not left_over(run) > LEFT:
        return None
    return Evidence(
        seen=f"everything passes through {units[found[0]]:.0f} unit(s) in {found[0]}; {left_over(run):.2f} of the loss "
        "of a constant prediction is left",
        usual="3 or more times as many units as there are outputs",
        onset=0,
        place=found[0],
        confidence=0.9,
    )


def signature(run: Run) -> Evidence | None:
    return bottleneck(run) or flat_and_narrow(run)


def flat_and_narrow(run: Run) -> Evidence | None:
    """Do both losses stay high and flat in a net with a narrow hidden layer?"""
    losses, steps = run["probe_loss"], run["val_step"]
    narrow, place = narrowest(run)
    if not narrow < NARROW:
        return None
    if not np.isfinite([*losses, run["val_loss"][-1]]).all() or steps[-1] < 30:
        return None
    third = int(np.searchsorted(steps, steps[-1] * 2 / 3))
    with np.errstate(all="ignore"):
        high = losses[-1] / chance_loss(run)
        level, learned = 1 - losses[-1] / losses[third], 1 - losses[-1] / losses[0]
    if high < HIGH or abs(run.gap[-1]) > GAP or not abs(level) < LEVEL or not learned > LEARNED:
        return None
    moves = typical(run["update_ratio"]).max()
    if not moves > MOVES:
        return None
    return Evidence(
        seen=f"training loss {losses[-1]:.2f} and validation loss {run['val_loss'][-1]:.2f}, both flat for the last "
        f"third of the run; {place} has {narrow:.1g} times as many units as there are outputs",
        usual="3 or more, and a training loss that is still falling",
        onset=int(steps[third]),
        place=place,
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Underfitting",
    cures={"128 hidden units": sick.but(width=128)},
    false_cures={
        "twice as many steps": sick.but(steps=800),
        "one more layer of two units": sick.but(depth=3),
    },
    harm=0.5,
    symptom="Training and validation loss fall together, plateau together, and both stay high. Gradients and updates "
    "look fine.",
    mechanism="The last layer receives only two numbers per image, and ten digits cannot be separated in a plane. No "
    "optimizer finds a function that the net cannot express.",
    formula=r"\mathrm{rank}(W_2) \leq 2 < 9",
    first_check="Training accuracy, before you think about regularisation: low and flat, with almost no gap.",
    remedy="A larger net: more units first, then more layers. More data and more steps do not help a net without "
    "capacity.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 5.2",
    looks="stops too high",
    shows="gap",
    where=("{activation}1", "layer1"),
    knobs=(
        Knob("width", (1, 128), log=True),
        Knob("depth", (2, 5)),
        Knob("activation", ("tanh", "leaky_relu", "relu")),
        Knob("lr", (1e-3, 0.03), log=True),
        Knob("steps", (200, 800)),
    ),
    cifar10={"lr": 0.003},  # 0.005 is too high for these larger inputs
    classic=ClassicCurve(9, "underfits"),
)
