"""A clipping threshold of 0.001: every update is scaled down to the same tiny length."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import clipped_to, left_over, tested, unlearned
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

ALWAYS = 0.95  # share of steps that are clipped; clipping to 1 clips half of them
# Gradient norm over the threshold, in the last quarter of the run. Clipping to 1: below 1; to 0.1: 10, and six points
# lost; to 0.01: 165 and 38 points lost; to 0.001: 1,600 to 1,800. A recurrent net clipped to 1 has 5 to 10.
ABOVE = 100.0
# Length of an update over learning rate times threshold. SGD: 1, and with momentum 0.9 up to 10. Adam rescales the
# clipped gradient and is not affected: 1e5 and more.
GOVERNED = 1e3
HIGH = 0.15  # of chance level: healthy runs end at 0.01 to 0.1, clipping to 0.01 at 0.8, to 0.001 at 1
# Where the loop does not tell its threshold: what is left of the loss of a constant prediction, and the gradient on the
# probe over the norm of all gradients. Clipped to 1e-4 in small programs: 0.9 to 1.05 and 5,000 to 20,000.
LEFT, LARGER = 0.47, 100.0

healthy = Recipe()
sick = healthy.but(clip=0.001)


def by_the_loop(run: Run) -> Evidence | None:
    """A loop that clips by itself: has every gradient the same norm, and would a longer step help?"""
    limit, tests = clipped_to(run, run["grad_norm_total"]), tested(run)
    if not limit or not left_over(run) > LEFT or not tests.get("gradient", 0.0) > LARGER * limit:
        return None
    return Evidence(
        seen=f"the gradient has a norm of {limit:.3g} at nearly every step, and {tests['gradient'] / limit:,.0f} times "
        f"that on the probe; {left_over(run):.2f} of the loss of a constant prediction is left",
        usual="a quarter of the steps clipped, and a gradient that falls below the threshold",
        onset=0,
        confidence=0.95,
    )


def signature(run: Run) -> Evidence | None:
    return by_the_loop(run) or by_a_known_threshold(run)


def by_a_known_threshold(run: Run) -> Evidence | None:
    """Are nearly all steps clipped to a threshold that is far too low, with an optimizer that does not rescale?"""
    clip = run.facts.get("clip")
    if not clip or run.facts.get("clip_by") != "norm" or not np.isfinite(run["grad_norm_total"]).all():
        return None
    late = slice(len(run) * 3 // 4, None)
    above = float(np.median(run["grad_norm_total"][late])) / clip
    length = np.sqrt((run["update_norm"][late] ** 2).sum(axis=1))
    governed = float(np.median(length)) < GOVERNED * clip * float(np.median(run["lr"][late]))
    if run.clipped.mean() < ALWAYS or above < ABOVE or not governed or not unlearned(run, HIGH):
        return None
    return Evidence(
        seen=f"{run.clipped.mean():.0%} of the steps clipped, and at the end the gradient is still {above:,.0f} times "
        "the threshold",
        usual="half of the steps clipped, and a gradient that falls below the threshold: at most 10 times",
        onset=0,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Clipping too tight",
    cures={"a threshold of 1": sick.but(clip=1.0), "no clipping": sick.but(clip=None)},
    false_cures={
        "ten times the learning rate: 55 %, the same as a threshold of 0.01": sick.but(lr=1.0),
        "ten times the threshold: 0.01": sick.but(clip=0.01),
    },
    harm=0.3,
    symptom="The loss falls in a straight, very slow line. The gradient norm stays as large as at the start.",
    mechanism="When every gradient is clipped to the same length, SGD moves a fixed tiny distance per step: it keeps "
    "the direction and loses the size.",
    formula=r"\Delta \theta = -\eta \, c \, \frac{g}{\lVert g \rVert}, \qquad \lVert \Delta \theta \rVert = \eta c",
    first_check="The share of clipped steps, and the gradient norm before clipping compared with the threshold. With "
    "Adam neither matters: it divides the size out again and reaches 94 % with the same threshold.",
    remedy="Set the threshold near the largest gradient norms of a healthy run (here 1 to 3), so that it clips only "
    "the peaks.",
    reference="Pascanu, Mikolov, Bengio, On the difficulty of training recurrent neural networks (2013), section 3.2",
    looks="stops too high",
    shows="grad_norm_total",
    knobs=(
        Knob("clip", (1e-4, 5.0), log=True),
        Knob("lr", (0.01, 1.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("momentum", (0.0, 0.9)),
    ),
    also_causes=("learning_rate_too_low", "learning_rate_left_low"),
)
