"""A momentum of 0.999 where 0.9 was meant: each update is the sum of a thousand gradients and overshoots the valley."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, fixed_loss
from labkit.training.recipe import Recipe

MUCH = 0.98  # momentum, or Adam's first beta; usual are 0.9 and 0.95
# The very first update as a share of its layer, before momentum has built up: 0.02 here, 0.16 in a small regression.
# A learning rate that is too high by itself changes a layer by 1.4 times its size.
FIRST = 0.3
RISE = 1.5  # the loss on the same images over the lowest before it; healthy 1.04 to 1.23, sick 2.3 or more
LEFT = (
    0.15  # of the loss of a constant prediction in the last quarter; healthy 0.02 to 0.06 on digits, sick 0.3 or more
)

healthy = Recipe(lr=0.05, momentum=0.9)
sick = healthy.but(momentum=0.999)


def signature(run: Run) -> Evidence | None:
    momentum, losses = run.facts.get("momentum", 0.0), fixed_loss(run)
    if momentum < MUCH or len(losses) < 4 or not run["update_ratio"][0].max() < FIRST:
        return None
    lowest = np.minimum.accumulate(losses)
    if not lowest[-1] > 0:  # losses that may be below 0 have no such ratio
        return None
    rise, late = losses / lowest, losses[-max(1, len(losses) // 4) :].mean()
    if rise.max() < RISE or not late > LEFT * chance_loss(run):
        return None
    summed = 1 / (1 - momentum) if momentum < 1 else np.inf
    return Evidence(
        seen=f"momentum is {momentum:g}, so a constant gradient adds up to {summed:.0f} times itself; the loss rose to "
        f"{rise.max():.3g} times its lowest value, although the first update only changed a layer by "
        f"{run['update_ratio'][0].max():.1g} of its size",
        usual="0.9, which adds up to 10 times, and a loss that does not rise again",
        onset=first_rise(run, rise),
        place="optimizer",
        confidence=0.93,
    )


def first_rise(run: Run, rise: np.ndarray) -> int:
    """The step at which the loss had risen by RISE, as far as it was measured."""
    at = int(np.argmax(rise > RISE))
    steps = run["val_step"] if "probe_loss" in run else np.arange(len(run))
    return int(steps[min(at, len(steps) - 1)])


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Momentum too high",
    cures={"a momentum of 0.9": sick.but(momentum=0.9)},
    false_cures={
        "clipping the gradient norm to 1: 65 %": sick.but(clip=1.0),
        "a batch of 512, with less noise: 88 %": sick.but(batch_size=512),
    },
    harm=0.3,
    symptom="The loss falls at first, rises again many steps later and swings in slow waves; on photographs it "
    "diverges. The gradients and the first updates look healthy.",
    mechanism="Momentum adds up the last 1 / (1 - m) gradients: ten at 0.9, a thousand at 0.999. The update points to "
    "where the valley was a thousand steps ago and is up to a thousand times as long as the learning rate says, so "
    "the net cannot stop at the bottom.",
    formula=r"\sum_{s=0}^{\infty} m^s = \frac{1}{1 - m}: \quad 10 \text{ at } 0.9, \quad 1000 \text{ at } 0.999",
    first_check="Learning rate divided by (1 - momentum): it is the rate at which the net really moves.",
    remedy="A momentum of 0.9. A higher one needs a learning rate that is lower by as much as 1 - m is, and a run "
    "of many times 1 / (1 - m) steps.",
    reference="Sutskever et al., On the importance of initialization and momentum in deep learning (2013)",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("momentum", (0.0, 0.999)),
        Knob("lr", (1e-3, 0.3), log=True),
        Knob("batch_size", (32, 512), log=True),
        Knob("steps", (100, 1000)),
    ),
    cifar10={"lr": 0.02},
    also_causes=("runaway_weights", "learning_rate_too_high_late", "learning_rate_too_high", "exploding_gradients"),
)
