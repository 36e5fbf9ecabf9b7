"""Batches of 32 at a learning rate made for 128: each gradient is mostly luck, and the loss never settles."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import bounce, quarters
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

FEW = 32  # samples in a batch; healthy runs here have 64 or more
# By how much the loss on the same 512 images climbs from one validation to the next, as a share of itself: 0.057 to
# 0.095 here, 0.046 in a healthy run with batches of 2. (Runs that have arrived, near 0, climb by 0.08: no harm done.)
BOUNCE = 0.04
HIGH = 0.55  # that loss, after the first quarter; batches of 2 with a rate that fits 0.49, here 0.68 to 0.8
FALLING = 0.75  # the last quarter's training loss over the third's; below, the run is still getting somewhere
FELL = 0.7  # and over the first loss of all; above, it never learned, and that has other reasons
MOVING = 0.01  # the median late update as a share of its layer; with a rate that fits 0.006, here 0.016 to 0.019
DECAYED = 0.5  # the last rate over the highest; a rate that came down calms any batch

healthy = Recipe()
sick = healthy.but(batch_size=32)


def signature(run: Run) -> Evidence | None:
    size, means, lr = run.facts.get("batch_length") or np.inf, quarters(run["loss"]), run["lr"]
    if size > FEW or lr[-1] < DECAYED * lr.max():
        return None
    if not FALLING * means[2] < means[3] < FELL * run["loss"][0]:
        return None
    late, (level, climb) = np.median(run["update_ratio"][-len(run) // 4 :], axis=0).max(), bounce(run)
    if not (late > MOVING and level > HIGH and climb > BOUNCE):
        return None
    noise = run.batch_loss_variance(max(1, len(run) // 4))[-1] ** 0.5
    return Evidence(
        seen=f"batches of {size}: from one to the next the loss jumps by {noise:.2f} around {means[3]:.2f}, and on the "
        f"same images it climbs by {climb:.0%} between validations, without getting lower",
        usual="batches of 64 or more at such a rate, whose loss keeps falling and climbs by less than 5 %",
        onset=len(run) // 2,
        confidence=0.7,
    )


failure = FailureMode(
    title="Batch too small",
    healthy=healthy,
    sick=sick,
    cures={
        "batches of 128": sick.but(batch_size=128),
        "batches of 32 with a cosine to 0 from a third of the rate": sick.but(lr=0.03, schedule="cosine"),
    },
    false_cures={
        "four times as many steps": sick.but(steps=1600),
        "clipping the gradient norm to 1: calmer, and 91 %": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.1,
    symptom="The loss is a thick band that no longer sinks, and the validation jumps by points from one time to "
    "the next.",
    mechanism="The noise of a gradient grows as the batch shrinks, and the learning rate carries it into the weights: "
    "what counts is rate over batch size. A quarter of the batch at the same rate is four times the noise.",
    first_check="Does the loss on a fixed set of images go up as often as down? Then it is the steps, not the batches "
    "they are measured on.",
    remedy="A larger batch, or the rate divided by as much as the batch was; a decay to 0 averages the noise away.",
    reference="Smith et al., Don't Decay the Learning Rate, Increase the Batch Size (2018)",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("batch_size", (16, 256), log=True),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("schedule", ("constant", "cosine")),
    ),
    cifar10="LR 0.1 with momentum is too high there even for batches of 128, so that there is no healthy twin",
)
