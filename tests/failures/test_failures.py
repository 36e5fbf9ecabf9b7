"""Every threshold of every signature: one run by hand just beyond it, one just short of it."""

import dataclasses
import importlib
import math

import numpy as np
import pytest
from helpers import LAYERS, hand_made

from labkit.diagnosis.diagnose import diagnose
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run

JUST_ABOVE, JUST_BELOW = 1.01, 0.99


def constants(name: str):
    """The module of a mode, for its thresholds."""
    return importlib.import_module(f"labkit.failures.{FAILURES[name].topic}.{name}")


def names(run: Run) -> list[str]:
    return [found.name for found in diagnose(run) if found.name != "unsure"]


def without(run: Run, *traces: str) -> Run:
    return dataclasses.replace(run, traces={name: run[name] for name in run.traces if name not in traces})


def test_the_healthy_run_by_hand_is_healthy():
    assert names(hand_made()) == []


def test_a_foreign_run_without_any_validation_can_be_diagnosed():
    unvalidated = ("val_step", "val_loss", "val_accuracy", "probe_loss", "probe_accuracy", "dead")
    assert names(without(hand_made(), *unvalidated)) == []
    assert names(without(jump(), *unvalidated)) == ["learning_rate_too_high"]
    assert names(without(flat(), *unvalidated)) == []  # its training loss fell
    still = hand_made(update_ratio=1e-6, loss=2.3)
    assert names(without(still, *unvalidated)) == ["learning_rate_too_low"]


# --- learning_rate_too_high -----------------------------------------------------------------------

HIGH = constants("learning_rate_too_high")


def jump(ratio: float = 2.0, peak: float = 100.0, step: int = 3, end: float = 0.6, first: float = 2.0) -> Run:
    """One update of this size at this step, and this loss, as a multiple of the first, two steps later.

    The last quarter of the losses is at this multiple of the first.
    """
    ratios, losses = np.full((40, 3), 0.01), first * np.r_[np.linspace(1.0, end, 30), np.full(10, end)]
    ratios[step, 1] = ratio
    losses[step + 2] = peak * losses[0]
    return hand_made(update_ratio=ratios, loss=losses)


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (jump(ratio=HIGH.VIOLENT * JUST_ABOVE), True),
        (jump(ratio=HIGH.VIOLENT * JUST_BELOW), False),
        (jump(peak=HIGH.RISE * JUST_ABOVE), True),
        (jump(peak=HIGH.RISE * JUST_BELOW), False),
        (jump(step=HIGH.WINDOW - 1), True),
        (jump(step=HIGH.WINDOW), False),
        (jump(step=0), True),
        (jump(peak=math.nan), True),
        (jump(peak=math.inf), True),
        (jump(end=HIGH.BACK * JUST_ABOVE), True),
        (jump(end=HIGH.BACK * JUST_BELOW), False),
        (jump(first=30.0, end=HIGH.BACK * math.log(10) / 30 * JUST_ABOVE), True),  # it began above chance level
        (jump(first=30.0, end=HIGH.BACK * math.log(10) / 30 * JUST_BELOW), False),
        (jump(peak=math.nan, end=0.1), True),  # nobody comes back from a NaN
    ],
)
def test_learning_rate_too_high_needs_a_violent_step_and_a_loss_that_rises_and_stays(run, seen):
    assert names(run) == (["learning_rate_too_high"] if seen else [])


def test_learning_rate_too_high_says_where_and_when():
    (found,) = diagnose(jump(ratio=3.25, peak=math.nan, step=4))
    assert (found.onset, found.place) == (4, LAYERS[1])
    assert found.seen == "step 4 changed a layer by 3.2 times its own size; the loss went from 2 to 2 and then to NaN"


def test_a_rise_before_the_violent_step_is_not_its_work():
    ratios, losses = np.full((40, 3), 0.01), np.linspace(2.0, 0.2, 40)
    ratios[5, 1], losses[2] = 2.0, 100.0
    assert names(hand_made(update_ratio=ratios, loss=losses)) == []


def test_a_loss_that_is_nan_from_the_start_has_another_cause():
    losses = np.full(40, math.nan)
    assert names(hand_made(update_ratio=2.0, loss=losses)) == []


@pytest.mark.parametrize(("peak", "seen"), [(HIGH.RISE * JUST_ABOVE, True), (HIGH.RISE * JUST_BELOW, False)])
def test_a_nan_that_the_loss_made_of_finite_outputs_is_the_rates_work_only_after_a_rise(peak, seen):
    run = jump(peak=peak)
    losses = np.where(np.arange(40) < 20, run["loss"], math.nan)
    origin = {"step": 20, "stage": "loss", "place": "mine", "largest": [15, 30, 40], "behind": [9, 5, 6]}
    broken = dataclasses.replace(
        run, traces=run.traces | {"loss": losses}, facts=run.facts | {"first_nonfinite": origin}
    )
    assert ("learning_rate_too_high" in names(broken)) == seen
    overflown = dataclasses.replace(broken, facts=run.facts | {"first_nonfinite": origin | {"largest": [None, 30, 40]}})
    assert "learning_rate_too_high" in names(
        overflown
    )  # the outputs themselves were not finite: that is no loss's fault


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (jump(ratio=0.2), False),
        (jump(ratio=1.4), True),
        (jump(peak=1.5), False),
        (jump(peak=50.0), True),
        (jump(ratio=1.53, peak=5.39, step=1, end=0.129, first=0.142), False),  # squared error, LR 1: it learns
        (jump(ratio=2.06, peak=41.1, step=0, end=1.12, first=2.32), True),  # LR 10, clipped: it does not
    ],
)
def test_learning_rate_too_high_on_the_numbers_measured_in_real_runs(run, seen):
    assert bool(names(run)) == seen


# --- learning_rate_too_low ------------------------------------------------------------------------

LOW = constants("learning_rate_too_low")


def flat(ratio: float = 1e-6, gradient: float = 1.0, end: float = 1.0) -> Run:
    """Updates and gradients of this size, and a loss that ends at this share of its first value."""
    losses = np.linspace(2.3, 2.3 * end, 5)
    norms = np.full((40, 3), gradient)
    return hand_made(update_ratio=ratio, grad_norm_total=gradient, grad_norm=norms, probe_loss=losses, val_loss=losses)


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (flat(ratio=LOW.TINY * JUST_BELOW), True),
        (flat(ratio=LOW.TINY * JUST_ABOVE), False),
        (flat(ratio=0.0), False),  # nothing moves at all: frozen, or dead
        (flat(gradient=LOW.ALIVE * JUST_ABOVE), True),
        (flat(gradient=LOW.ALIVE * JUST_BELOW), False),
        (flat(end=0.951), True),
        (flat(end=0.949), False),
        (flat(end=1.049), True),
        (flat(end=1.051), False),
    ],
)
def test_learning_rate_too_low_needs_tiny_updates_living_gradients_and_a_flat_loss(run, seen):
    assert names(run) == (["learning_rate_too_low"] if seen else [])


def test_learning_rate_too_low_looks_at_the_layer_that_moves_most():
    ratios = np.full((40, 3), 1e-7)
    ratios[:, 2] = LOW.TINY * JUST_ABOVE
    losses = np.full(5, 2.3)
    assert names(hand_made(update_ratio=ratios, probe_loss=losses, val_loss=losses)) == []
    ratios[:, 2] = 3e-6
    (found,) = diagnose(hand_made(update_ratio=ratios, probe_loss=losses, val_loss=losses))
    assert (found.onset, found.place) == (0, LAYERS[2])
    assert "3e-06" in found.seen and "2.300 to 2.300" in found.seen


@pytest.mark.parametrize(
    ("run", "seen"),
    [(flat(ratio=1e-3), False), (flat(ratio=3e-6), True), (flat(gradient=1e-5), False), (flat(gradient=0.4), True)],
)
def test_learning_rate_too_low_on_the_numbers_measured_in_real_runs(run, seen):
    assert bool(names(run)) == seen


# --- too_few_samples ------------------------------------------------------------------------------

FEW = constants("too_few_samples")


def turned(lowest: float = 1.0, end: float = 3.0, train: float = 0.01, accuracy: float = 1.0) -> Run:
    """Validation falls to `lowest`, rises to `end`; the training images end at this loss and accuracy."""
    return hand_made(
        val_loss=[2.3, lowest, (lowest + end) / 2, end, end],
        probe_loss=[2.3, lowest, train, train, train],
        probe_accuracy=[0.1, 0.6, accuracy, accuracy, accuracy],
        val_accuracy=[0.1, 0.92, 0.92, 0.92, 0.92],
    )


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (turned(end=FEW.RISE * JUST_ABOVE), True),
        (turned(end=FEW.RISE * JUST_BELOW), False),
        (turned(lowest=0.3, end=0.8, train=0.8 - FEW.GAP * JUST_ABOVE), True),
        (turned(lowest=0.3, end=0.8, train=0.8 - FEW.GAP * JUST_BELOW), False),
        (turned(accuracy=FEW.MEMORISED), True),
        (turned(accuracy=FEW.MEMORISED - 0.001), False),
    ],
)
def test_too_few_samples_needs_a_turn_a_gap_and_a_memorised_training_set(run, seen):
    assert names(run) == (["too_few_samples"] if seen else [])


def test_too_few_samples_says_when_it_turned():
    (found,) = diagnose(turned())
    assert (found.onset, found.place) == (10, "")
    assert "training accuracy of 100%" in found.seen and "rose from 1.00 at step 10 to 3.00" in found.seen
    assert "not 3.0" in found.usual


@pytest.mark.parametrize("missing", ["val_loss", "probe_loss", "probe_accuracy"])
def test_too_few_samples_cannot_be_seen_without_validation(missing):
    assert names(without(turned(), missing)) == []


def test_too_few_samples_is_not_the_diagnosis_of_a_run_that_went_nan():
    run = turned()
    run.traces["val_loss"][3] = math.nan
    assert names(run) == []


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (turned(lowest=1.5, end=1.5 * 1.4), False),
        (turned(lowest=1.5, end=1.5 * 2), True),
        (turned(lowest=0.1, end=0.35, train=0.05), False),
        (turned(lowest=0.8, end=2.1, train=0.1), True),
        (turned(accuracy=0.97), False),
    ],
)
def test_too_few_samples_on_the_numbers_measured_in_real_runs(run, seen):
    assert bool(names(run)) == seen


# --- vanishing_gradients --------------------------------------------------------------------------

VANISHING = constants("vanishing_gradients")


def fading(first: float = 1e-7, last: float = 1.0, dead: float = 0.05, end: float = 1.0) -> Run:
    """Gradient norms from `last` down to `first`, a dead share, and a loss that ends at this share of its first."""
    norms = np.tile([first, math.sqrt(first * last), last], (40, 1))
    losses = np.linspace(2.3, 2.3 * end, 5)
    return hand_made(grad_norm=norms, dead=dead, probe_loss=losses, val_loss=losses)


FIRST = VANISHING.FAINT * JUST_BELOW


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (fading(first=VANISHING.FAINT * JUST_BELOW), True),
        (fading(first=VANISHING.FAINT * JUST_ABOVE), False),
        (fading(first=FIRST, last=FIRST / (VANISHING.RATIO * JUST_BELOW)), True),
        (fading(first=FIRST, last=FIRST / (VANISHING.RATIO * JUST_ABOVE)), False),
        (fading(dead=VANISHING.DEAD * JUST_BELOW), True),
        (fading(end=0.76), True),
        (fading(end=0.74), False),
        (fading(first=0.0), False),  # exactly nothing: dead or frozen, not vanishing
        (fading(last=0.0), False),
        (fading(last=math.nan), False),
    ],
)
def test_vanishing_gradients_needs_a_faint_first_layer_and_a_flat_loss(run, seen):
    assert names(run)[:1] == (["vanishing_gradients"] if seen else [])


def test_a_dead_layer_is_not_called_a_vanishing_gradient():
    assert names(fading(dead=VANISHING.DEAD * JUST_ABOVE)) == ["dead_relu"]


def test_two_layers_are_too_few_to_speak_of_vanishing():
    run = fading()
    run.facts["matrices"] = ["layer1", "layer3"]
    assert names(run) == []


def test_vanishing_gradients_says_the_factor_per_layer():
    (found,) = diagnose(fading(first=1e-8, last=1.0))
    assert (found.onset, found.place) == (0, LAYERS[0])
    assert found.seen == "the gradient of layer1 is 1e-08 of that of layer3: a factor of 0.0001 per layer"


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (fading(first=0.4), False),
        (fading(first=1e-5), True),
        (fading(first=9e-5, last=0.05), False),
        (fading(first=9e-5, last=3.0), True),
    ],
)
def test_vanishing_gradients_on_the_numbers_measured_in_real_runs(run, seen):
    assert bool(names(run)) == seen


# --- dead_relu ------------------------------------------------------------------------------------

DEAD = constants("dead_relu")


def dying(*shares: float, end: float = 1.0) -> Run:
    """These shares of one layer dead at each of five validations, and a loss that ends at this share of its first."""
    dead = np.full((5, 4), 0.05)
    dead[:, 2] = shares
    losses = np.linspace(2.3, 2.3 * end, 5)
    return hand_made(dead=dead, probe_loss=losses, val_loss=losses)


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (dying(*[DEAD.DEAD * JUST_ABOVE] * 5), True),
        (dying(*[DEAD.DEAD] * 5), False),
        (dying(*[DEAD.DEAD * JUST_BELOW] * 5), False),
        (dying(1, 1, 1, 1, 0.4), False),  # it came back to life
        (dying(*[1.0] * 5, end=0.76), True),
        (dying(*[1.0] * 5, end=0.74), False),  # half of it is dead, and the rest learns
    ],
)
def test_dead_relu_needs_a_dead_layer_and_a_flat_loss(run, seen):
    assert names(run) == (["dead_relu"] if seen else [])


@pytest.mark.parametrize(
    ("shares", "onset"),
    [((1, 1, 1, 1, 1), 0), ((0, 0, 1, 1, 1), 20), ((1, 0, 1, 0, 1), 40), ((0.2, 0.6, 0.81, 0.85, 0.9), 20)],
)
def test_dead_relu_begins_when_it_stays_dead(shares, onset):
    (found,) = diagnose(dying(*shares))
    assert (found.onset, found.place) == (onset, "relu2")
    assert found.seen == f"{shares[-1]:.0%} of the units of relu2 are zero on every probe image"


@pytest.mark.parametrize(("share", "seen"), [(0.39, False), (0.9, True)])
def test_dead_relu_on_the_numbers_measured_in_real_runs(share, seen):
    assert bool(names(dying(*[share] * 5))) == seen


# --- fp16_overflow --------------------------------------------------------------------------------

OVERFLOW = constants("fp16_overflow")


def origin(**changes) -> Run:
    """A run that says its first infinity was in an activation."""
    found = {"step": 2, "stage": "activations", "place": "layer3", "count": 12, "dtype": "float16", "float32": 1e6}
    return hand_made(facts={"first_nonfinite": found | changes})


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (origin(float32=OVERFLOW.LARGEST + 1.0), True),
        (origin(float32=float(OVERFLOW.LARGEST)), False),
        (origin(float32=OVERFLOW.LARGEST * JUST_BELOW), False),
        (origin(float32=math.inf), True),
        (origin(float32=math.nan), False),  # it is no number in float32 either
        (origin(float32=None), True),  # a net in pure half precision: nobody can tell
        (origin(stage="loss"), False),
        (origin(stage="gradients"), False),
        (origin(stage="weights"), False),
        (origin(dtype="float32"), False),
        (origin(dtype="bfloat16"), False),
    ],
)
def test_fp16_overflow_needs_a_float16_activation_that_would_fit_in_float32(run, seen):
    assert names(run) == (["fp16_overflow"] if seen else [])


def test_fp16_overflow_says_where_when_and_how_large():
    (found,) = diagnose(origin(float32=123_456.0))
    assert (found.onset, found.place) == (2, "layer3")
    assert found.seen == "12 entries of layer3 are not finite at step 2: in float32 the largest is 123,456"
    assert "65,504" in found.usual


def test_a_run_read_off_its_traces_is_no_proof_of_an_overflow():
    assert names(hand_made(facts={"first_nonfinite": {"step": 2, "stage": "activations", "place": "relu1"}})) == []
