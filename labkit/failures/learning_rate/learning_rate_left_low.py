"""A cautious learning rate that is never raised: the loss falls at every step, and the run ends half way."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, quarters, typical
from labkit.training.recipe import Recipe

# The median update of the layer that moves most, as a share of it. Healthy short runs: 3e-3 to 5e-2; here 1e-3. Below
# 1e-4 nothing learns at all, and the failure is `learning_rate_too_low`.
SMALL, TINY = 2e-3, 1e-4
# Where hardly anything was learned: up to 3.4e-3 in small programs of other tasks (regression, tables, tokens; healthy
# ones 5e-3 to 1.4e-2, with dropout of 0.95 7e-3 to 3e-2), and 0.79 to 0.95 of chance level in the last quarter. The
# run at LR 0.0015 that shows rounding has 0.72 to 0.77, and learns.
SLOW, HARDLY = 4e-3, 0.82
# Share of the total fall of the loss in the last quarter of the run. Healthy: 0 to 3 %; here 17 to 22 %.
LATE = 0.07
HIGH = 0.22  # the loss in the last quarter over chance level; healthy runs 0.01 to 0.1, here 0.4
# The loss in the last quarter over the first one. Here 0.40 to 0.44; where less was learned, the updates may be small
# for another reason: 0.63 in a healthy run at LR 0.002 that shows rounding.
FELL = 0.52
STEADY = 0.01  # how much the learning rate may change over the run; with a schedule it is another failure
CLIPPED = 0.5  # share of clipped steps above which clipping, not the learning rate, keeps the updates small
# The first loss and the highest one over chance level; above it the init is the problem, or a step jumped: large
# weights hide the updates.
ODD = 2.0

healthy = Recipe()
sick = healthy.but(lr=0.003)


def signature(run: Run) -> Evidence | None:
    loss, lr, ratio, chance = run["loss"], run["lr"], typical(run["update_ratio"]).max(), chance_loss(run)
    means = quarters(loss)
    if not (np.isfinite(means).all() and np.ptp(lr) <= STEADY * lr.max()) or run.clipped.mean() > CLIPPED:
        return None
    half_way = TINY < ratio < SMALL and HIGH * chance < means[3] < FELL * loss[0]
    hardly_begun = TINY < ratio < SLOW and means[3] > HARDLY * chance
    share = (means[2] - means[3]) / max(loss[0] - means[3], 1e-12)
    if not (half_way or hardly_begun) or not 0 < loss[0] <= np.max(loss) < ODD * chance:
        return None
    if share < LATE or not (np.diff(means) < 0).all():
        return None
    return Evidence(
        seen=f"no step changes a layer by more than {ratio:.1g} of its size at a constant LR of {lr[0]:.2g}; the "
        f"loss is still falling, from {means[2]:.2f} to {means[3]:.2f} in the last quarter alone",
        usual="updates of 0.003 to 0.05 of a layer, and at most 3 % of the total fall in the last quarter",
        onset=0,
        place=run.layers[int(np.argmax(typical(run["update_ratio"])))],
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Learning rate left low",
    cures={
        "a learning rate of 0.1": sick.but(lr=0.1),
        "momentum 0.9 and ten times the learning rate": sick.but(lr=0.03, momentum=0.9),
    },
    false_cures={"twice as many steps": sick.but(steps=800)},
    harm=0.08,
    symptom="A smooth curve: the loss falls at every step, without noise, and is still high at the end.",
    mechanism="The learning rate was set low while something else was wrong, or to be safe, and nobody raised it "
    "again. Each step goes in the right direction, but only a thirtieth as far as it could.",
    first_check="The end of the curve: a loss that still falls in a straight line, with updates of a thousandth of the "
    "weights or less.",
    remedy="Raise the learning rate by factors of three until the loss gets noisy, then go back one; a range test "
    "finds it in a hundred steps. Twice as many steps help less than three times the learning rate.",
    reference="Smith, Cyclical Learning Rates for Training Neural Networks (2017), on the range test",
    looks="stops too high",
    shows="update_ratio",
    knobs=(
        Knob("lr", (0.001, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("optimizer", ("sgd", "adam")),
        Knob("steps", (100, 1000)),
    ),
    not_on_cifar10="a perceptron's loss falls slowly on CIFAR-10 at any learning rate, so a slow fall shows "
    "nothing there",
)
