"""Every gradient entry clipped to 0.00001: only the signs of the gradient are left."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import clipped_to, left_over, tested, unlearned
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

ALWAYS = 0.95  # share of steps with a clipped entry; harmless thresholds reach it too
# Largest gradient entry over the threshold, in the last quarter of the run. Clipped to 0.01: 7 and harmless; to 0.001:
# 90 and four points lost; to 1e-4: 1,200 and 25 points lost; to 1e-5: 9,000 to 10,000.
ABOVE = 1500.0
# Length of an update over learning rate times threshold. SGD: the root of the number of weights (300 here), with
# momentum 0.9 ten times that. Adam rescales the clipped gradient and is not affected: 1e7 and more.
GOVERNED = 1e5
HIGH = 0.25  # of chance level: healthy runs end at 0.01 to 0.1, a threshold of 1e-4 at 0.66, 1e-5 at 0.96
# Where the loop does not tell its threshold: what is left of the loss of a constant prediction, and the norm of the
# gradient on the probe over that largest entry. Clipped to 1e-5 in small programs: 0.9 to 1.03 and 120,000 to 155,000.
LEFT, LARGER = 0.47, 1e4

healthy = Recipe()
sick = healthy.but(clip=1e-5, clip_by="value")


def by_the_loop(run: Run) -> Evidence | None:
    """A loop that clips by itself: is the largest entry of every gradient the same number?"""
    largest = np.maximum(run["grad_max"], -run["grad_min"])
    limit, tests = clipped_to(run, largest.max(axis=1)), tested(run)
    if not limit or not left_over(run) > LEFT or not tests.get("gradient", 0.0) > LARGER * limit:
        return None
    return Evidence(
        seen=f"the largest entry of a gradient is {limit:.3g} at nearly every step, while the norm of the gradient on "
        f"the probe is {tests['gradient']:.3g}; {left_over(run):.2f} of the loss of a constant prediction is left",
        usual="a largest entry that differs from step to step",
        onset=0,
        confidence=0.95,
    )


def signature(run: Run) -> Evidence | None:
    return by_the_loop(run) or by_a_known_threshold(run)


def by_a_known_threshold(run: Run) -> Evidence | None:
    """Do nearly all steps have entries far above the threshold, with an optimizer that does not rescale?"""
    clip = run.facts.get("clip")
    if not clip or run.facts.get("clip_by") != "value" or not np.isfinite(run["grad_norm_total"]).all():
        return None
    late = slice(len(run) * 3 // 4, None)
    largest = np.maximum(run["grad_max"], -run["grad_min"])[late]
    above = float(np.median(largest.max(axis=1))) / clip
    length = np.sqrt((run["update_norm"][late] ** 2).sum(axis=1))
    governed = float(np.median(length)) < GOVERNED * clip * float(np.median(run["lr"][late]))
    if run.clipped.mean() < ALWAYS or above < ABOVE or not governed or not unlearned(run, HIGH):
        return None
    return Evidence(
        seen=f"at the end the largest gradient entry is {above:,.0f} times the threshold, and "
        f"{run.clipped.mean():.0%} of the steps are clipped",
        usual="at most 100 times; a threshold near 0.1 clips only the peaks",
        onset=0,
        place=run.parameters[int(np.argmax(np.median(largest, axis=0)))],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Value clipping too tight",
    cures={"a threshold of 0.1 per entry": sick.but(clip=0.1), "no clipping": sick.but(clip=None)},
    false_cures={"ten times the threshold: 0.0001": sick.but(clip=1e-4)},
    harm=0.2,
    symptom="The loss falls slowly and steadily, and gradients stay large. Every update has the same length.",
    mechanism="Every entry beyond the threshold is set to the threshold, so large and small derivatives count the "
    "same: direction is lost as well as length, and each update is a very short step along the signs.",
    formula=r"g_i \leftarrow \max(-c, \min(c, g_i)) \approx c \, \mathrm{sign}(g_i)",
    first_check="The largest gradient entry before clipping, compared with the threshold.",
    remedy="Use a threshold near the largest entries of a healthy run (here 0.1), or clip by norm, which keeps the "
    "direction. Adam is not affected: it divides the size out again.",
    reference="Goodfellow, Bengio, Courville, Deep Learning (2016), section 10.11.1",
    looks="stops too high",
    shows="grad_max",
    knobs=(
        Knob("clip", (1e-6, 1.0), log=True),
        Knob("clip_by", ("norm", "value")),
        Knob("lr", (0.01, 1.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
    ),
    also_causes=("learning_rate_too_low", "learning_rate_left_low"),
)
