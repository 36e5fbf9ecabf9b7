"""Signs of failure that several signatures look for, and what the loss curve alone shows."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, fixed_loss, late_loss, total_norm


def tested(run: Run) -> dict[str, float]:
    """Results of the tests on the probe at the end of the run, by name; empty where there were none."""
    return run.facts.get("probe_tests") or {}


def left_over(run: Run) -> float:
    """The share of the loss of a constant prediction that is left on the probe at the end; NaN where it is unknown."""
    constant = run.facts.get("constant_loss") or 0.0
    return float(run["probe_loss"][-1] / constant) if constant > 0 and "probe_loss" in run else float("nan")


# Share of the steps, and relative difference, for sizes that count as the same. Clipped to a norm: all of them, within
# 1e-6; the L1 penalty, whose gradient is nearly constant: 1e-4 to 1e-2 apart.
NEARLY_ALL, SAME_SIZE = 0.9, 1e-5
PREFERS = 0.5  # how much lower perfect outputs are rated than those for other targets, as a share: healthy 0.75 to 1
SHORT = 5.0  # the best step over a late update: a learning rate that is too low 14 and more, healthy runs 0.2 to 30
GAIN = 0.03  # what the best step gains, as a share of the loss; with a learning rate that is too low 0.04 and more
USED = 1.05  # the loss with the inputs of other samples over the loss: nets that ignore their inputs 1.00
# The same two where a run has no other sign: in a net of convolutions at a thousandth of its learning rate 170 and 0.6.
LONG, MUCH = 50.0, 0.3
SLOW = ("learning_rate_too_low", "training_not_finished")
OF_THE_LOSS = ("loss_does_not_fit", "gradient_ascent")
OF_THE_STEP = ("learning_rate_too_low", "learning_rate_left_low", "bf16_updates_lost", "clipping_too_tight")
OF_THE_INPUTS = ("blank_inputs", "dead_relu", "vanishing_gradients", "zero_init", "weight_collapse")


def ruled_out(run: Run) -> dict[str, str]:
    """Failures that the tests on the probe exclude, and what they found."""
    tests, update, found = tested(run), late_update(run), {}
    truth, swapped, loss, other = (tests.get(name, np.nan) for name in ("truth", "swapped", "loss", "other_inputs"))
    if swapped - truth > PREFERS * abs(swapped) and loss > truth:
        found |= dict.fromkeys(OF_THE_LOSS, "the loss is lowest for perfect outputs")
    if update > 0 and "best_step" in tests:
        longer, gain = tests["best_step"] / update, loss - tests.get("best_loss", loss)
        if longer < SHORT:
            found |= dict.fromkeys(OF_THE_STEP, f"the best step is {longer:.2g} times as long as an update")
        elif gain < GAIN * abs(loss):
            found |= dict.fromkeys(OF_THE_STEP, f"a step of any length lowers the loss by {max(gain, 0):.1g} at most")
    if other > USED * loss > 0:
        found |= dict.fromkeys(
            OF_THE_INPUTS, f"with the inputs of other samples the loss is {other / loss:.2g} times as high"
        )
    return found


def nothing_to_gain(run: Run) -> bool:
    """Would no step along the gradient of the probe lower its loss by a share that matters?"""
    tests = tested(run)
    loss = tests.get("loss", np.nan)
    return bool(loss - tests.get("best_loss", np.nan) < GAIN * abs(loss))


def longer_step(run: Run) -> str:
    """That a far longer step than the run takes would lower its loss by far, in words; empty where it would not."""
    tests, update = tested(run), late_update(run)
    longer = tests.get("best_step", 0.0) / update if update > 0 else 0.0
    loss = tests.get("loss", 0.0)
    gain = 1 - tests.get("best_loss", loss) / loss if loss > 0 else 0.0
    if longer < LONG or gain < MUCH:
        return ""
    return f"a step {longer:.0f} times as long as an update would lower the loss by {gain:.0%}"


def late_update(run: Run) -> float:
    """The median length of an update in the last quarter of the run, relative to all weights; 0 where it is unknown."""
    late = slice(-max(1, len(run) // 4), None)
    if not len(run) or "update_norm" not in run or "weight_norm" not in run:
        return 0.0
    with np.errstate(all="ignore"):
        shares = total_norm(run["update_norm"][late]) / total_norm(run["weight_norm"][late])
    return float(np.median(shares)) if np.isfinite(shares).all() else 0.0


def clipped_to(run: Run, sizes: np.ndarray) -> float:
    """The threshold at which these sizes of gradients were cut off at nearly every step; 0 where they were not.

    A loop that clips by itself does not tell its threshold, but no gradient has the same size twice.
    """
    sizes = sizes[run.measured_in_full & np.isfinite(sizes)]
    limit = float(np.median(sizes)) if len(sizes) > 1 else 0.0
    return limit if limit > 0 and np.mean(np.abs(sizes / limit - 1) < SAME_SIZE) > NEARLY_ALL else 0.0


def first_weights(run: Run, what: str) -> dict[str, float]:
    """`units`, `inputs`, `gain` or `alike` of each layer that multiplies by weights, as before the first step."""
    return {name: each[what] for name, each in (run.facts.get("first_weights") or {}).items() if what in each}


def stuck(run: Run, share: float = 0.05) -> bool:
    """Has the loss stayed within this share of its first value?"""
    losses = fixed_loss(run)
    with np.errstate(all="ignore"):  # a loss that begins at 0
        return len(losses) > 1 and bool(abs(losses[-1] / losses[0] - 1) < share)


@dataclass(frozen=True)
class OutlierBatch:
    """A step whose batch contained outliers, and its effect on gradient and loss."""

    step: int
    outliers: float  # share of the batch's samples
    gradient: float  # its gradient norm over the median of the steps before
    aftermath: float  # the highest loss of the steps after it over the median of the steps before

    @property
    def is_harmful(self) -> bool:
        return self.gradient > JUMP and self.aftermath > AFTERMATH

    def __str__(self) -> str:
        return (
            f"at step {self.step} {self.outliers:.1%} of the batch has values far beyond the usual; the gradient is "
            f"{self.gradient:.0f} times the usual one, and the loss rises to {self.aftermath:.0f} times what it was"
        )


# Healthy: at most 2.2; one corrupt image of 128: 49 to 140, a corrupt batch: 250 to 750.
JUMP = 10.0
AFTERMATH = 5.0  # clipped to 1: 1.1 to 1.8; unclipped: 95 to 440 after one image, 110 to 3,300 after a batch


def outlier_batches(run: Run, window: int = 50) -> list[OutlierBatch]:
    """Every step with outliers that has at least ten steps before it to compare with, and one after it."""
    found, loss, norm = [], run["loss"], run["grad_norm_total"]
    for step in np.flatnonzero(run["input_outliers"][10:] > 0) + 10:
        before, after = slice(max(0, step - window), step), loss[step + 1 : step + 1 + window]
        usual = np.median(loss[before]), np.median(norm[before])
        if len(after) and np.isfinite(usual).all() and min(usual) > 0:
            worst = np.nan_to_num(after, nan=np.inf).max()
            found.append(
                OutlierBatch(int(step), float(run["input_outliers"][step]), norm[step] / usual[1], worst / usual[0])
            )
    return found


def lr_decayed_from(run: Run, share: float = 1e-3) -> int:
    """The step from which the learning rate stays below this share of its peak; the run's length if it never does."""
    lr = run["lr"]
    awake = np.flatnonzero(~(lr < share * np.max(lr, initial=0.0)))
    return int(awake[-1]) + 1 if len(awake) else len(lr)


def oscillation(run: Run) -> tuple[float, float]:
    """The loss on the same images after the first quarter, and how far it climbs from one validation to the next.

    Both are means, the climb relative to the level. There is no batch noise in it: the probe is always the same.
    """
    losses = run["probe_loss"][run["val_step"] >= len(run) / 4]
    if len(losses) < 4 or not np.isfinite(losses).all() or losses.mean() <= 0:
        return 0.0, 0.0
    return float(losses.mean()), float(np.maximum(np.diff(losses), 0).mean() / losses.mean())


def unlearned(run: Run, share: float) -> bool:
    """Did the loss end above this share of chance level, or not finite at all?"""
    losses, chance = run["probe_loss"] if "probe_loss" in run else run.smoothed(), chance_loss(run)
    return bool(chance > 0 and len(losses) and not losses[-1] <= share * chance)


def flat_start(run: Run, share: float = 0.02) -> int:
    """How many steps the smoothed training loss stays within this share of its first value, from the start on."""
    losses = run.smoothed()
    with np.errstate(all="ignore"):
        left = np.flatnonzero(~(np.abs(losses / losses[0] - 1) < share)) if len(losses) else ()
    return int(left[0]) if len(left) else len(losses)


# What the loss curve alone shows, before any other instrument is read.
Look = Literal["error", "not finite", "jumps", "never moves", "stops too high", "validation worse", "nothing"]
LOOKS: dict[Look, str] = {
    "error": "training stops with an error",
    "not finite": "the loss is NaN or infinite",
    "jumps": "the loss jumps up and does not come back",
    "never moves": "the loss stays where it began",
    "stops too high": "the loss falls, slowly or not far enough",
    "validation worse": "training looks well, validation does not",
    "nothing": "nothing in the curves looks wrong",
}
LONG_ENOUGH = 50  # steps after which a loss that has not moved is a sign
UNMOVED = 0.05  # share of its first value within which a loss counts as unmoved
JUMPED = 1.5  # times its first value, at the end
CHANCE = 0.8  # or, after a jump to five times that, this share of it: back to its first value, and no lower
HIGH = 0.25  # share of its first value that is still left at the end; healthy short runs keep 0.02 to 0.2
WORSE = 0.08  # accuracy on training images minus that on validation images


def looks(run: Run) -> Look:
    """Which of LOOKS a run has."""
    if run.facts.get("error"):
        return "error"
    losses = run["loss"]
    if not len(losses):
        return "nothing"
    if not np.isfinite(losses[-1]) or run.facts.get("first_nonfinite"):
        return "not finite"
    if np.nanmin(losses) < 0:
        return "nothing"  # a loss of policies, a likelihood: its size says nothing, and no more do ratios
    first, late = float(losses[0]), late_loss(run)
    if late > JUMPED * first or (np.nanmax(losses) > 5 * first and late > CHANCE * first):
        return "jumps"
    if len(losses) >= LONG_ENOUGH and abs(late / first - 1) < UNMOVED:
        return "never moves"
    if late > HIGH * first:
        return "stops too high"
    if "probe_accuracy" in run and run.accuracy is not None and run["probe_accuracy"][-1] - run.accuracy > WORSE:
        return "validation worse"
    return "nothing"


def broken_loss(run: Run) -> dict | None:
    """The first non-finite value, where finite outputs gave a loss, or a gradient of it, that is not finite."""
    origin = run.facts.get("first_nonfinite") or {}
    at_the_loss = origin.get("stage") == "loss" or origin.get("place") == "outputs"
    known = all(origin.get(name) and None not in origin[name] for name in ("largest", "behind"))
    return origin if at_the_loss and known else None


def broken_update(run: Run, dtype: str) -> dict | None:
    """The first non-finite value, where an optimizer with float16 state produced it in weights of this format.

    None where loss or gradient were not finite: the update then only passed that on.
    """
    origin = run.facts.get("first_nonfinite") or {}
    state = (run.facts.get("dtypes") or {}).get("state", ())
    if origin.get("stage") != "weights" or origin.get("dtype") != dtype or "float16" not in state:
        return None
    given = run["grad_norm_total"][run.row_of(origin["step"])], run["loss"][run.row_of(origin["step"])]
    return origin if np.isfinite(given).all() else None
