"""Batches of 32 at a learning rate tuned for 128: each gradient is mostly noise, and the loss never settles."""

import numpy as np

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, oscillation
from labkit.recording.run import Run
from labkit.recording.summaries import quarters
from labkit.training.recipe import Recipe

FEW = 32  # samples in a batch; healthy runs here have 64 or more
# How much the loss on the same 512 images rises from one validation to the next, as a share of itself: 0.057 to 0.095
# here, 0.046 in a healthy run with batches of 2. (Converged runs, near 0, rise by 0.08, which is harmless.)
BOUNCE = 0.04
HIGH = 0.55  # that loss, after the first quarter; batches of 2 with a suitable learning rate 0.49, here 0.68 to 0.8
FALLING = 0.75  # the last quarter's training loss over the third's; below, the run is still making progress
FELL = 0.7  # and over the very first loss; above, it never learned, for another reason
MOVING = 0.01  # median late update as a share of its layer; with a suitable learning rate 0.006, here 0.016 to 0.019
DECAYED = 0.5  # the last learning rate over the highest; decay removes the noise of any batch
# For any task: batches of one or two samples, without batch norm, and what is left of the loss of a constant prediction
# after at least ENOUGH steps. Small programs with batches of one 0.5 to 0.75; with their own batches 0.01 to 0.46.
TINY, LEFT, UNLEARNED, ENOUGH = 2, 0.47, 0.95, 100

healthy = Recipe()
sick = healthy.but(batch_size=32)


def single_samples(run: Run) -> Evidence | None:
    """Batches so small that every gradient is mostly noise: the net has learned something, and far from enough."""
    size, left = run.facts.get("batch_length") or np.inf, left_over(run)
    if size > TINY or len(run) < ENOUGH or run.facts.get("batch_norms") or not LEFT < left < UNLEARNED:
        return None
    return Evidence(
        seen=f"batches of {size}; after {len(run)} steps {left:.2f} of the loss of a constant prediction is left",
        usual="batches of 8 or more",
        onset=0,
        place="batches",
        confidence=0.7,
    )


def signature(run: Run) -> Evidence | None:
    return single_samples(run) or never_settles(run)


def never_settles(run: Run) -> Evidence | None:
    """Does the loss on the same samples rise as often as it falls, at a learning rate that does not decay?"""
    size, means, lr = run.facts.get("batch_length") or np.inf, quarters(run["loss"]), run["lr"]
    if size > FEW or lr[-1] < DECAYED * lr.max():
        return None
    if not FALLING * means[2] < means[3] < FELL * run["loss"][0]:
        return None
    late, (level, climb) = np.median(run["update_ratio"][-len(run) // 4 :], axis=0).max(), oscillation(run)
    if not (late > MOVING and level > HIGH and climb > BOUNCE):
        return None
    noise = run.batch_loss_variance(max(1, len(run) // 4))[-1] ** 0.5
    return Evidence(
        seen=f"batches of {size}: the loss varies by {noise:.2f} around {means[3]:.2f} from batch to batch, and on the "
        f"same images it rises by {climb:.0%} between validations, without getting lower",
        usual="batches of 64 or more at this learning rate, and a loss that keeps falling and rises by less than 5 %",
        onset=len(run) // 2,
        confidence=0.7,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Batch too small",
    cures={
        "batches of 128": sick.but(batch_size=128),
        "batches of 32, a third of the learning rate and cosine decay to 0": sick.but(lr=0.03, schedule="cosine"),
    },
    false_cures={
        "four times as many steps": sick.but(steps=1600),
        "clipping the gradient norm to 1: less noise, but 91 %": sick.but(clip=1.0),
    },
    harm=0.1,
    symptom="The loss is a thick band that no longer falls, and the validation accuracy jumps by points between "
    "evaluations.",
    mechanism="Gradient noise grows as the batch shrinks, and the learning rate carries it into the weights: what "
    "counts is learning rate over batch size. A quarter of the batch at the same learning rate has four times the "
    "noise.",
    first_check="Does the loss on a fixed set of images rise as often as it falls? Then the noise is in the updates, "
    "not in the measurement.",
    remedy="Use a larger batch, or divide the learning rate by the same factor as the batch; decay to 0 averages the "
    "noise out.",
    reference="Smith et al., Don't Decay the Learning Rate, Increase the Batch Size (2018)",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("batch_size", (16, 256), log=True),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("schedule", ("constant", "cosine")),
    ),
    not_on_cifar10="LR 0.1 with momentum is too high there even for batches of 128, so there is no healthy twin",
    classic=ClassicCurve(6, "oscillates"),
)
