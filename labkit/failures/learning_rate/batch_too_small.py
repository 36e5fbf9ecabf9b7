"""Batches of 4 at a learning rate tuned for 128: each gradient is mostly noise, and the loss never settles."""

import numpy as np

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.failures.signs import left_over, oscillation
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, quarters
from labkit.training.recipe import Recipe

FEW = 32  # samples in a batch; above, the same symptoms are those of a learning rate that is too high late
# How much the loss on the same 512 images rises from one validation to the next, as a share of itself: 0.10 to 0.13
# here, 0.01 in the healthy twin. (Converged runs, near 0, rise by 0.08, which is harmless.)
BOUNCE = 0.04
HIGH = 0.55  # that loss, after the first quarter; batches of 8 to 32 at LR 0.05 0.3 to 0.39, here 0.78 to 0.85
FALLING = 0.75  # the last quarter's training loss over the third's; below, the run is still making progress
FELL = 0.7  # and over the very first loss, here 0.34 to 0.38; above, see below
MOVING = 0.01  # median late update as a share of its layer; with decay 0.001, here 0.046 to 0.054
DECAYED = 0.5  # the last learning rate over the highest; decay removes the noise of any batch
# Photographs, of which hardly anything is learned: the loss ends at 0.87 to 0.92 of chance level, each update is 0.07
# to 0.08 of a layer, and the loss on the same images still rises by 0.015 to 0.022. The healthy twin has 0.67, 0.008
# and 0; batches of 4 at LR 0.01, which learn slowly, 0.82 to 0.86, 0.028 and 0.007.
VERY_FEW, LITTLE, DRIFTING, SLIGHT = 8, 0.95, 0.04, 0.01  # VERY_FEW also for numbers: noisy targets bounce with 32
TOGETHER = 8  # batches whose gradients are averaged in one of the cures
# For any task: batches of one sample, without batch norm, and what is left of the loss of a constant prediction after
# at least ENOUGH steps. Small programs with batches of one 0.5 to 0.75; with their own batches 0.01 to 0.46. A healthy
# net on photographs has 0.81 left after 1,000 batches of two.
TINY, LEFT, UNLEARNED, ENOUGH = 1, 0.47, 0.95, 100

healthy = Recipe(evaluate_every=10)
sick = healthy.but(batch_size=4)


def step_after_8_batches(training, x, y) -> None:
    """Gradient accumulation: the mean gradient of eight batches, and then one update."""
    number = training.recorder.steps % TOGETHER
    if number == 0:
        training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss / TOGETHER)
    training.look(loss, x, y)
    if number == TOGETHER - 1:
        training.clip()
        training.update()


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
    if (
        size > (VERY_FEW if run.facts.get("task") == "numbers" else FEW)
        or lr[-1] < DECAYED * lr.max()
        or not means[3] > FALLING * means[2]
    ):
        return None
    late, (level, climb) = np.median(run["update_ratio"][-len(run) // 4 :], axis=0).max(), oscillation(run)
    chance, fell = chance_loss(run), means[3] < FELL * run["loss"][0]
    restless = fell and late > MOVING and level > HIGH and climb > BOUNCE
    drowned = size <= VERY_FEW and means[3] < LITTLE * chance and level > FELL * chance
    if not restless and not (drowned and late > DRIFTING and climb > SLIGHT):
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
        "cosine decay to 0, in eight times as many steps": sick.but(schedule="cosine", steps=3200),
        "the gradients of 8 batches averaged before each update, in eight times as many steps": sick.but(
            step=step_after_8_batches, steps=3200
        ),
    },
    false_cures={
        "eight times as many steps: 87 %": sick.but(steps=3200),
        "clipping the gradient norm to 1: 79 %": sick.but(clip=1.0),
    },
    harm=0.06,
    symptom="The loss is a thick band that no longer falls, and the validation accuracy jumps by points between "
    "evaluations. A learning rate that is too high late has the same curves.",
    mechanism="Gradient noise grows as the batch shrinks, and the learning rate carries it into the weights: what "
    "counts is learning rate over batch size. The learning rate alone is not too high: batches of 128 train even at "
    "three times of it. Nor are there too few images: the same 1,600 reach 89 % with a decay to 0.",
    formula=r"\mathrm{Var}(g_B) = \frac{\sigma^2}{B}, \qquad \text{noise} \propto \frac{\eta}{B}",
    first_check="Does the loss on a fixed set of images rise as often as it falls? Then the noise is in the updates, "
    "not in the measurement. If a larger batch at the same learning rate calms it, it was the batch.",
    remedy="Use a larger batch, average the gradients of several batches before each update, or divide the learning "
    "rate by the same factor as the batch and train longer; decay to 0 averages the noise out.",
    reference="Smith et al., Don't Decay the Learning Rate, Increase the Batch Size (2018)",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("batch_size", (2, 256), log=True),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("schedule", ("constant", "cosine")),
    ),
    cifar10={"lr": 0.02},  # at LR 0.1 batches of 4 photographs diverge to NaN: the step itself is then too long
    classic=ClassicCurve(6, "oscillates"),
)
