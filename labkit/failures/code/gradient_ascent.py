"""The sign of the gradient is flipped: every step climbs, and the loss rises from the first one on."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss
from labkit.training.recipe import Recipe

# Measured on perceptrons and convnets, SGD and Adam, cross-entropy and squared error, MNIST and CIFAR-10. All are
# ratios to the first loss, or to the size of a layer: they hold for any number of classes, and for regression.
RISE = 2.0  # the batch loss over the first one, for good. Sick: after 2 to 44 steps; 30 healthy runs: never
STEPS = 2  # until then, at least: a loss that doubles in one step has jumped over the valley instead
# The largest update until then, as a share of its layer. Sick: 0.01 to 0.13 (0.29 with LR 0.1 and momentum on CIFAR-10,
# which is too high there for descent too); LR too high: 0.4 and more.
GENTLE = 0.2
EARLY = 1.0  # the mean loss of the first quarter of these steps. Sick: 1.01 to 1.5; LR too high, at first: 0.98
FELL = 0.97  # the lowest loss of the probe until then. Sick: 1, it never falls; LR too high, at first: 0.93
# How much higher the loss of perfect outputs is than that of the same outputs for targets of other samples, as a share
# of the latter. With a flipped sign 0.3 to 1 on 15 small programs of every task; in healthy ones it is 0.8 to 1 lower.
FLIPPED = 0.1
# Minus the loss of the best constant prediction over the first loss; with a flipped sign 1e15 and more.
BOTTOMLESS = 1e6
# The loss of the probe at the first evaluation over that of a constant prediction, at the last over the first, and the
# largest of the first updates. Maximising programs of sequences and sounds: 28 to 3,400, 130 to 330, 0.08 to 0.26. A
# learning rate that is too high has updates of 0.5 and more.
HIGH, HIGHER, SMALL, WINDOW = 2.0, 5.0, 0.3, 10
AT_ONCE = 1.3  # the mean of the next losses over the first: here 1.6 and more; before weights run away at most 1.1

healthy = Recipe(lr=0.05, steps=200)


def step_uphill(training, x, y) -> None:
    """The plain step, but the gradient is that of minus the loss."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(-loss)
    training.look(loss, x, y)
    training.clip()
    training.update()


sick = healthy.but(step=step_uphill)


def prefers_errors(run: Run) -> Evidence | None:
    """A loss below 0 that rates perfect outputs worse than those of other samples: its sign is flipped."""
    tests, losses, constant = tested(run), fixed_loss(run), run.facts.get("constant_loss", np.nan)
    truth, swapped = tests.get("truth", np.nan), tests.get("swapped", np.nan)
    worse, better = truth - swapped > FLIPPED * abs(swapped), swapped - truth > FLIPPED * abs(swapped)
    bottomless = -constant > BOTTOMLESS * abs(run["loss"][0]) and not better
    if not len(losses) or not losses[-1] < 0 or not (worse or (bottomless and run["loss"][0] < 0)):
        return None
    rated = f"rates perfect outputs worse ({truth:.3g}) than outputs for targets of other samples ({swapped:.3g})"
    return Evidence(
        seen=f"the loss fell to {losses[-1]:.3g}, and it "
        + (rated if worse else f"has no lowest value: a constant prediction reaches {constant:.1g}"),
        usual="a loss that is lowest for perfect outputs",
        onset=0,
        place="loss",
        confidence=0.97,
    )


def gets_worse(run: Run) -> bool:
    """Of a loss below 0: does the net get worse while it falls? A probe or an accuracy must tell."""
    if "probe_loss" in run and run["probe_loss"][0] > 0:
        return not run["probe_loss"][-1] < RISE * run["probe_loss"][0]
    known = [run[name] for name in ("probe_accuracy", "val_accuracy") if name in run]
    return bool(known) and bool(known[0][-1] <= known[0][0])


def signature(run: Run) -> Evidence | None:
    return prefers_errors(run) or climbs(run) or only_rises(run)


def only_rises(run: Run) -> Evidence | None:
    """Is the loss on the same samples far above that of a constant prediction, and higher at every evaluation?"""
    losses, constant = fixed_loss(run), run.facts.get("constant_loss") or np.inf
    if len(losses) < 3 or not (np.diff(losses) > 0).all() or not losses[0] > HIGH * constant > 0:
        return None
    update = float(np.nanmax(run["update_ratio"][:WINDOW]))
    at_once = np.mean(run["loss"][1 : WINDOW + 1]) / run["loss"][0]
    if not losses[-1] > HIGHER * losses[0] or not update < SMALL or not at_once > AT_ONCE:
        return None
    return Evidence(
        seen=f"the loss on the same samples rises at each of {len(losses)} evaluations, to {losses[-1] / constant:.2g} "
        f"times that of a constant prediction, though no early step changed a layer by more than {update:.0%}",
        usual="a loss that falls with updates of 0.1 to 20 %",
        onset=0,
    )


def climbs(run: Run) -> Evidence | None:
    """Does the loss rise from the first step on, with updates of the usual size?"""
    losses, probed = run["loss"], run["val_step"] if "probe_loss" in run else np.zeros(0)
    if losses[0] < 0 and gets_worse(run):  # the flipped loss itself was recorded
        losses = -losses
    if not 0 < losses[0] < np.inf:
        return None
    risen = np.flatnonzero(losses >= RISE * losses[0])
    if not len(risen) or risen[0] < STEPS or (losses[risen[0] :] < losses[0]).any():
        return None
    steps = int(risen[0])
    if not np.isfinite(losses[: steps + 1]).all():  # not a climb: NaN or infinity came first
        return None
    update = float(run["update_ratio"][:steps].max())
    early = losses[1 : 1 + -(-steps // 4)].mean() / losses[0]
    if not update < GENTLE or not early > EARLY:
        return None
    same = np.abs(run["probe_loss"][probed <= run["step"][steps]]) if len(probed) else probed
    if len(same) and not same.min() > FELL * same[0]:
        return None
    return Evidence(
        seen=f"the loss rises from the first step on and is {RISE:g} times the first after {steps} steps, though no "
        f"step until then changed a layer by more than {update:.1%}",
        usual="a loss that falls with updates of 0.1 to 20 %",
        onset=0,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Gradient ascent",
    cures={"the sign corrected: backward on the loss": sick.but(step="plain_step")},
    false_cures={
        "a tenth of the learning rate: a loss of 2e10 after 200 steps instead of NaN": sick.but(lr=0.005),
        "clipping the gradient norm to 1: the loss still rises, to 740": sick.but(clip=1.0),
        "Adam: its loss rises to 6,000": sick.but(optimizer="adam", lr=0.001),
    },
    harm=0.8,
    symptom="The loss rises from the first step on, smoothly at first, then without bound. A smaller learning rate "
    "only delays it.",
    mechanism="A step along the gradient makes the loss larger, as reliably as one against it makes it smaller. The "
    "further the weights go, the steeper it gets.",
    formula=r"L(\theta + \eta \nabla L) \approx L(\theta) + \eta \, \lVert \nabla L \rVert^2",
    first_check="The loss of one batch before and after a single small step on it: it must fall.",
    remedy="Look for a minus sign too many or too few: in the loss, in a reward, in a hand-written update "
    "(weight += lr * gradient), maximize=True in the optimizer, or a negative learning rate.",
    reference="PyTorch documentation, torch.optim.SGD: maximize (2.13)",
    looks="not finite",
    shows="probe_loss",
    knobs=(
        Knob("lr", (1e-3, 0.1), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("clip", (None, 1.0)),
        Knob("momentum", (0.0, 0.9)),
    ),
    also_causes=("learning_rate_too_high", "runaway_weights", "zero_grad_missing"),
)
