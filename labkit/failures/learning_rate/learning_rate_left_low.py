"""A cautious learning rate that is never raised: the loss falls at every step, and the run ends half way."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import late_update, left_over, tested
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, fixed_loss, quarters, typical
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
# Any task, by the tests on the probe: the length of the best single step along the gradient over that of a late update,
# what it gains, over the loss of a constant prediction, and what is left. A learning rate 33 times too low in small
# programs: 14 to 540, 0.013 to 0.3 and 0.58 to 1. The float32 twin of a run that loses updates in bfloat16 has a small
# learning rate on purpose, and 0.57 left after 400 steps. Where the learning rate decays, an update is taken at its
# highest.
# Others that have much left: shuffled labels 1 to 12, batches of one 3 to 6, a bottleneck 1 to 7, dead units 80 with a
# gain of 0.
LONGER, GAIN, LEFT = 12.5, 0.012, 0.65
# A noisy task leaves as much, and one step on the probe alone gains as much, by memorising it (10 to 70, 0.1). But
# there validation does not follow: its fall over that of the probe, here 0.7 to 1.4 and up to the end, there 0 to 0.4.
# And the last quarter of the evaluations brings nothing: as a share of the whole fall here 0.13 and more, there 0 to
# 0.1.
FOLLOWS, TURNED, STILL = 0.5, 1.02, 0.1
# How much the loss on the probe falls over the whole run, and how much it may rise between evaluations, over that of a
# constant prediction. Here 0.07 to 0.3, and 0; collapsed weights and huge samples: 0 to 0.02.
FALL, BUMP = 0.05, 0.02
HOPELESS = 0.005  # what the best step gains, as a share of the loss: here 0.04 and more, dead units 0.001

healthy = Recipe()
sick = healthy.but(lr=0.003)


def no_step_helps(run: Run) -> bool:
    """Did the tests on the probe find that a step of any length gains nothing, as with dead units?"""
    tests = tested(run)
    return tests.get("best_loss", -np.inf) > (1 - HOPELESS) * tests.get("loss", np.inf)


def short_steps(run: Run) -> Evidence | None:
    """Would one step of another length gain what the run did not, though the loss falls at every evaluation?"""
    tests, lr, losses = tested(run), run["lr"], fixed_loss(run)
    constant, update = run.facts.get("constant_loss") or 0.0, late_update(run)
    if not (constant > 0 and update > 0 and left_over(run) > LEFT and len(losses) > 2) or run.clipped.mean() > CLIPPED:
        return None
    update *= float(lr.max() / lr[-1])
    longer = tests.get("best_step", 0.0) / update
    gain = (losses[-1] - tests.get("best_loss", np.inf)) / constant
    if not (longer > LONGER and gain > GAIN) or np.diff(losses).max() > BUMP * constant:
        return None
    if not FALL * constant < losses[0] - losses[-1] or losses[0] > ODD * constant or not validation_follows(run):
        return None
    return Evidence(
        seen=f"an update changes the weights by {update:.1g} of their size, and one step {longer:.0f} times as long "
        f"would lower the loss from {losses[-1]:.3g} to {tests['best_loss']:.3g}; it falls at every evaluation, and "
        f"{left_over(run):.2f} of the loss of a constant prediction is left",
        usual="a best step of 1 to 5 updates while there is much to learn",
        onset=0,
        confidence=0.68,  # many faults make learning slow: direct evidence of one comes first
    )


def validation_follows(run: Run) -> bool:
    """Does the validation loss fall as that of the probe does, up to the end? Then it is not memorising."""
    probe, validated = run["probe_loss"], run["val_loss"] if "val_loss" in run else run["probe_loss"]
    fall = probe[0] - probe[-1]
    if not np.isfinite([*probe, *validated]).all() or not probe[-1 - len(probe) // 4] - probe[-1] > STILL * fall:
        return False
    return bool(validated[0] - validated[-1] > FOLLOWS * fall and validated[-1] < TURNED * validated.min())


def signature(run: Run) -> Evidence | None:
    return half_way_or_less(run) or short_steps(run)


def half_way_or_less(run: Run) -> Evidence | None:
    """Are the updates small, and does the loss fall until the end?"""
    loss, lr, ratio, chance = run["loss"], run["lr"], typical(run["update_ratio"]).max(), chance_loss(run)
    means = quarters(loss)
    if not (np.isfinite(means).all() and np.ptp(lr) <= STEADY * lr.max()) or run.clipped.mean() > CLIPPED:
        return None
    half_way = TINY < ratio < SMALL and HIGH * chance < means[3] < FELL * loss[0]
    hardly_begun = TINY < ratio < SLOW and means[3] > HARDLY * chance
    share = (means[2] - means[3]) / max(loss[0] - means[3], 1e-12)
    if not (half_way or hardly_begun) or not 0 < loss[0] <= np.max(loss) < ODD * chance:
        return None
    if share < LATE or not (np.diff(means) < 0).all() or no_step_helps(run):
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
    formula=r"L(\theta - \eta g) \approx L(\theta) - \eta \lVert g \rVert^2, \qquad \eta \ll \eta_{\text{best}}",
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
