"""Training ends after a twentieth of the steps: nothing is wrong, and the loss is still falling steeply."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, tested
from labkit.recording.run import Run
from labkit.recording.summaries import total_norm, typical, unexplained
from labkit.training.recipe import Recipe

# Measured on MNIST and CIFAR-10 and, through `watch`, on small programs of 15 kinds that were stopped after a twentieth
# of their steps, beside 216 healthy ones and 500 with other faults.
FEWEST = 8  # steps: fewer are a try of the code
# Share of the loss of a constant prediction that is left on the probe. Stopped: 0.5 to 1.04; healthy 0 to 0.54, most
# below 0.3.
LEFT = 0.4
# Steps times the median update of the layer that moves most, as a share of it: how far the weights could have gone.
# Stopped: 0.18 to 0.9; healthy 1.3 to 22; faults with updates of this size, too, 1.2 and more.
TRAVELLED = 1.0
BUSY = 5e-3  # that median update. Stopped: 9e-3 to 0.1; a learning rate that is too low: up to 3.4e-3
# How much one step along the gradient can lower the loss, over the loss of a constant prediction. Stopped: 0.019 to
# 0.22; where a net cannot get further it is 0.
GAIN = 0.01
# Fall of the batch loss from the first third of the run to the last, in the same unit. Stopped: 0.05 to 0.9.
FALL = 0.03

# So few steps that nothing else can be said: how many, the sum of all updates as shares of the weights, what is left
# and what one step can gain. Programs that stopped after a twentieth, or had all data in one batch: 8 to 40, 0.01 to
# 0.64, 0.34 to 1 and 0.01 to 0.29; healthy ones take 130 steps and more, or have converged: no step gains anything.
A_FEW, NOT_FAR, SOME, ANYTHING = 40, 0.7, 0.3, 0.009

healthy = Recipe(momentum=0.0, depth=4)
sick = healthy.but(steps=20)


def signature(run: Run) -> Evidence | None:
    return falls_steeply(run) or hardly_begun(run)


def hardly_begun(run: Run) -> Evidence | None:
    """A handful of short steps, after which there is much to gain: whatever else may be wrong, it cannot show yet."""
    tests, constant, left = tested(run), run.facts.get("constant_loss") or 0.0, left_over(run)
    steps = int(run["step"][-1]) + 1
    if run.facts.get("stopped") or not FEWEST <= steps <= A_FEW or not left > SOME or "best_loss" not in tests:
        return None
    with np.errstate(all="ignore"):
        travelled = float(np.sum(total_norm(run["update_norm"]) / total_norm(run["weight_norm"]))) * steps / len(run)
    gain = (tests["loss"] - tests["best_loss"]) / constant
    if not (travelled < NOT_FAR and gain > ANYTHING):
        return None
    return Evidence(
        seen=f"only {steps} steps, which add up to {travelled:.2g} times the weights; {left:.2f} of the loss of a "
        f"constant prediction is left, and one good step would take off another {gain:.2f}",
        usual="hundreds of steps that add up to the size of the weights and more",
        onset=len(run) - 1,
        confidence=0.65,
    )


def falls_steeply(run: Run) -> Evidence | None:
    """Does the loss still fall, with updates of the usual size and not far from the start?"""
    tests, constant, left = run.facts.get("probe_tests") or {}, run.facts.get("constant_loss"), unexplained(run)
    if run.facts.get("stopped") or len(run) < FEWEST or "best_loss" not in tests or not len(left):
        return None  # without the tests at its end the run goes on, or was ended by somebody
    first, _, last = (float(part.mean()) / constant for part in np.array_split(run["loss"], 3))
    update = float(np.nanmax(typical(run["update_ratio"]), initial=0.0))
    gain = (tests["loss"] - tests["best_loss"]) / constant
    if not (left[-1] > LEFT and first - last > FALL and gain > GAIN and update > BUSY):
        return None
    steps = int(run["step"][-1]) + 1  # fewer may be recorded
    if steps * update > TRAVELLED:
        return None
    return Evidence(
        seen=f"{steps} steps of {update:.1g} of the weights each; the loss is still falling, from {first:.2f} to "
        f"{last:.2f} of that of a constant prediction, {left[-1]:.2f} of it is left on the probe, and one good step "
        f"would take off another {gain:.2f}",
        usual="a loss that hardly falls any more at the end, and steps that add up to 1.2 times the weights and more",
        onset=len(run) - 1,
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Training not finished",
    cures={"twenty times as many steps": sick.but(steps=400)},
    false_cures={
        "three times the learning rate: 49 to 54 %": sick.but(lr=0.3),
        "four times as many units: 52 to 60 %": sick.but(width=512),
        "batches of 512: 42 to 43 %": sick.but(batch_size=512),
        "Adam: 79 to 83 %": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.3,
    symptom="Loss and validation loss both fall steeply, up to the very last step. The accuracy is poor on training "
    "and validation data alike.",
    mechanism="The weights start far from any good place, and each step changes them by about one percent. After "
    "twenty steps they have gone a fraction of the way. Epochs are a bad measure of it: with few samples or large "
    "batches an epoch has few steps.",
    formula=r"\lVert \theta_t - \theta_0 \rVert \leq \eta \sum_{s < t} \lVert g_s \rVert",
    first_check="The end of the loss curve: does it still fall? Count the updates, not the epochs.",
    remedy="Train on until the validation loss has stopped falling for several evaluations, and only then judge the "
    "net. A small data set or a large batch needs more epochs. If it takes too long, raise the learning rate first: a "
    "range test shows how far.",
    reference="Humbatova et al., Taxonomy of Real Faults in Deep Learning Systems (2020), wrong number of epochs",
    also_causes=("learning_rate_left_low",),  # a single longer step would have gained more than the last ones
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("steps", (10, 400), log=True),
        Knob("lr", (0.01, 1.0), log=True),
        Knob("batch_size", (16, 512), log=True),
        Knob("depth", (2, 5)),
    ),
    cifar10={"depth": 3},
)
