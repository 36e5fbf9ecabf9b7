"""A learning rate that suits the start and is never lowered: the loss falls, then oscillates above its minimum."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import late_update, left_over, oscillation, tested
from labkit.recording.run import Run
from labkit.recording.summaries import quarters
from labkit.training.recipe import Recipe

# How much the loss on the same 512 images rises from one validation to the next, as a share of itself. Healthy runs
# that are not near 0 yet: 0.00 to 0.04; LR 0.5 to the end: 0.075 to 0.12.
BOUNCE = 0.055
HIGH = 0.4  # that loss, after the first quarter; the decayed twin 0.2 to 0.28, here 0.6 to 0.73
APART = 2.0  # that loss over the training loss; far above it, the batches differ from the probe, as in sorted data
FALLING = 0.68  # the last quarter's training loss over the third's; decayed runs 0.46 to 0.57, these 0.74 to 1.06
LOWEST = 1.5  # and over the lowest of all quarters, here at most 1.27; above, something set the run back
FELL = 0.85  # and over the very first loss; above, it never learned, for another reason
MOVING = 0.01  # the median late update as a share of its layer; decayed 0.0008, here 0.02
DECAYED = 0.5  # the last learning rate over the highest; after decay it is not too high late
MANY = 48  # samples in a batch; with fewer the batch is too small
# By the tests on the probe: the best step over a late update, what it gains over the loss of a constant prediction, and
# what is left of that. A tagger at 20 times its learning rate: 0.07, 0.03 and 0.38; healthy small programs 0.2 to 100,
# 0 to 0.1 and 0.01 to 0.46; with dropout the probe has another gradient than training.
SHORTER, GAIN, LEFT = 0.12, 0.02, 0.3

# With momentum, which makes the noise of a constant LR visible within 400 steps: plain SGD at 0.5 still reaches 94 %.
healthy = Recipe(activation="tanh", lr=0.5, momentum=0.9, schedule="cosine")
sick = healthy.but(schedule="constant")


def overshoots(run: Run) -> Evidence | None:
    """Is a step far shorter than the updates the best one, and would it gain much?"""
    tests, update, lr = tested(run), late_update(run), run["lr"]
    if not update > 0 or run.facts.get("dropouts") or lr[-1] < DECAYED * lr.max() or "best_loss" not in tests:
        return None
    constant, ratio = run.facts.get("constant_loss") or np.inf, tests["best_step"] / update
    if not (ratio < SHORTER and tests["loss"] - tests["best_loss"] > GAIN * constant > 0 and left_over(run) > LEFT):
        return None
    return Evidence(
        seen=f"the best step along the gradient is {ratio:.2g} times as long as an update, and would lower the loss "
        f"from {tests['loss']:.3g} to {tests['best_loss']:.3g}",
        usual="1 to 5 times as long",
        onset=len(run) // 2,
        confidence=0.7,
    )


def signature(run: Run) -> Evidence | None:
    return bounces(run) or overshoots(run)


def bounces(run: Run) -> Evidence | None:
    """Does the loss on the same samples rise as often as it falls, at the full learning rate?"""
    means, lr = quarters(run["loss"]), run["lr"]
    if (run.facts.get("batch_length") or MANY) < MANY or lr[-1] < DECAYED * lr.max():
        return None
    if not FALLING * means[2] < means[3] < min(FELL * run["loss"][0], LOWEST * means.min()):
        return None
    late, (level, climb) = np.median(run["update_ratio"][-len(run) // 4 :], axis=0).max(), oscillation(run)
    if not (late > MOVING and HIGH < level < APART * means[3] and climb > BOUNCE):
        return None
    return Evidence(
        seen=f"at the full LR of {lr[-1]:.2g} the loss on the same images rises by {climb:.0%} between validations, "
        f"and the training loss no longer falls: {means[2]:.2f} in the third quarter, {means[3]:.2f} in the last",
        usual="rises of at most 4 %, and a loss that converges to 0.1",
        onset=len(run) // 2,
        confidence=0.7,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Learning rate too high late",
    cures={
        "cosine decay from the same learning rate to 0": sick.but(schedule="cosine"),
        "half the learning rate after each epoch": sick.but(schedule="exponential", decay=0.5),
    },
    false_cures={"twice as many steps": sick.but(steps=800)},
    harm=0.06,
    symptom="A good start, then a loss that oscillates in a band and falls no further, however long it trains.",
    mechanism="Far from the minimum, long steps are the fastest; near it they jump from one wall of the valley to the "
    "other. The learning rate alone sets how far above the minimum the loss stays.",
    formula=r"\mathrm{E}[L] - L_{\min} \propto \eta \, \frac{\sigma^2}{B}",
    first_check="Lower the learning rate tenfold for the last quarter of the run: if the loss drops at once, it was "
    "too high.",
    remedy="Decay the learning rate towards the end: cosine, step decay, or reduce on plateau.",
    reference="Robbins and Monro, A Stochastic Approximation Method (1951); You et al., How Does Learning Rate Decay "
    "Help Modern Neural Networks? (2019)",
    looks="stops too high",
    shows="probe_loss",
    knobs=(
        Knob("schedule", ("constant", "cosine", "warmup_cosine", "one_cycle")),
        Knob("lr", (0.03, 0.5), log=True),
        Knob("batch_size", (64, 512), log=True),
        Knob("steps", (200, 1000)),
    ),
    cifar10={"activation": "relu", "lr": 0.2, "momentum": 0.0},  # LR 0.5 diverges on these larger inputs
    costs="the loss ends three to five times as high as with decay",
    also_causes=("overconfidence",),
)
