"""Learning rates, schedules and batches: each signature just on either side of each of its thresholds."""

import contextlib
import warnings

import numpy as np
import pytest
import torch
from helpers import hand_made

from labkit.failures.catalogue import FAILURES
from labkit.recording.recorder import momentum_of
from labkit.recording.run import NoTrace

MINE = (
    "batch_too_small",
    "learning_rate_left_low",
    "learning_rate_too_high_late",
    "schedule_too_short",
    "scheduler_stepped_per_batch",
    "warmup_missing",
    "warmup_too_long",
)
STEPS = 400
VALIDATIONS = np.arange(0, STEPS + 1, 25)


def seen(name: str, run) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return FAILURES[name].signature(run) is not None


def falls_to(*levels) -> np.ndarray:
    """A loss that begins at 2.3 and has these means in the quarters of the run."""
    loss = np.repeat(np.array(levels, dtype=float), STEPS // 4)
    loss[0] = 2.3
    return loss


def run_of(facts: dict | None = None, **traces):
    """A run of 400 steps, validated every 25, that ends with a loss of 0.6 unless told otherwise."""
    traces = {"val_step": VALIDATIONS, "probe_loss": np.full(17, 0.6), "loss": falls_to(1, 0.8, 0.7, 0.6)} | traces
    for name in ("val_loss", "val_accuracy", "probe_accuracy"):
        traces.setdefault(name, np.full(17, 0.5))
    return hand_made(STEPS, facts={"clip": None, "batch_length": 128} | (facts or {}), **traces)


@pytest.mark.parametrize("name", MINE)
def test_it_leaves_odd_runs_alone(name):
    for steps in (1, 2, 3, 40):
        nothing = np.full(steps, np.nan)
        for run in (
            hand_made(steps),
            hand_made(steps, loss=nothing),
            hand_made(steps, loss=nothing, update_ratio=np.nan),
        ):
            with contextlib.suppress(NoTrace):
                assert not seen(name, run)
    without = hand_made()
    del without.traces["probe_loss"], without.traces["lr"]
    with pytest.raises(NoTrace):
        seen(name, without)


# --- schedules ------------------------------------------------------------------------------------


def asleep(from_step: int, rest: float = 0.0) -> np.ndarray:
    lr = np.full(STEPS, 0.1)
    lr[from_step:] = rest
    return lr


def test_a_schedule_is_too_short_when_much_of_the_run_is_at_rate_0_with_a_high_loss():
    name = "schedule_too_short"
    assert seen(name, run_of(lr=asleep(40))) and seen(name, run_of(lr=asleep(270)))
    assert not seen(name, run_of(lr=asleep(290)))
    assert seen(name, run_of(lr=asleep(40, 0.9e-4))) and not seen(name, run_of(lr=asleep(40, 1.1e-4)))
    assert seen(name, run_of(lr=asleep(40), loss=falls_to(0.5, 0.3, 0.22, 0.22)))
    assert not seen(name, run_of(lr=asleep(40), loss=falls_to(0.5, 0.3, 0.18, 0.18)))
    assert seen(name, run_of(lr=asleep(2))) and not seen(name, run_of(lr=asleep(1)))
    assert not seen(name, run_of(lr=0.0))
    assert FAILURES[name].signature(run_of(lr=asleep(40))).onset == 40


def test_a_scheduler_is_stepped_per_batch_when_every_step_takes_the_same_share():
    name, step = "scheduler_stepped_per_batch", np.arange(STEPS)
    assert seen(name, run_of(lr=0.1 * 0.9**step)) and seen(name, run_of(lr=0.1 * 0.981**step))
    assert not seen(name, run_of(lr=0.1 * 0.9 ** (step // 78)))
    assert not seen(name, run_of(lr=0.1 * 0.99**step)), "it does not reach a thousandth"
    assert not seen(name, run_of(lr=asleep(40)))
    assert not seen(name, run_of(lr=0.1 * 0.9**step, loss=falls_to(0.9, 0.6, 0.4, 0.4)))
    assert seen(name, run_of(lr=0.1 * 0.9**step, loss=falls_to(0.9, 0.6, 0.5, 0.5)))
    for wobble, is_seen in ((0.002, True), (0.004, False)):
        factors = 0.9 + wobble * (-1.0) ** step
        assert seen(name, run_of(lr=0.1 * np.cumprod(factors))) == is_seen
    assert not seen(name, run_of(lr=0.1 * 0.4**step)), "gone in fewer steps than it takes to call it constant"
    assert seen(name, run_of(lr=0.1 * 0.55**step))
    long = np.arange(1000)
    for factor, is_seen in ((0.989, True), (0.992, False)):
        slow = hand_made(1000, lr=0.1 * factor**long, loss=np.full(1000, 0.6))
        assert seen(name, slow) == is_seen


def test_a_warm_up_is_too_long_when_the_rate_rises_in_a_straight_line_to_the_end():
    name, rising = "warmup_too_long", np.linspace(0.001, 0.1, STEPS)
    assert seen(name, run_of(lr=rising)) and not seen(name, run_of(lr=0.1))
    assert seen(name, run_of(lr=np.linspace(0.03, 0.1, STEPS)))
    assert not seen(name, run_of(lr=np.linspace(0.036, 0.1, STEPS)))
    assert not seen(name, run_of(lr=np.minimum(rising, 0.09))), "it ended"
    assert not seen(name, run_of(lr=np.geomspace(0.001, 0.1, STEPS))), "a range test"
    assert seen(name, run_of(lr=rising, loss=falls_to(1, 0.5, 0.3, 0.22)))
    assert not seen(name, run_of(lr=rising, loss=falls_to(1, 0.5, 0.3, 0.18)))
    assert seen(name, run_of({"planned_steps": 440}, lr=rising))
    assert not seen(name, run_of({"planned_steps": 450}, lr=rising)), "it was stopped in its warm-up"
    for steps, is_seen in ((21, True), (19, False)):
        assert seen(name, hand_made(steps, lr=np.linspace(0.001, 0.1, steps))) == is_seen
    bent = np.cumsum(1 + 0.02 * np.linspace(-1, 1, STEPS))
    straight = np.cumsum(1 + 0.005 * np.linspace(-1, 1, STEPS))
    assert seen(name, run_of(lr=straight)) and not seen(name, run_of(lr=bent))


# --- rates ----------------------------------------------------------------------------------------

SLOW = falls_to(2.0, 1.5, 1.2, 0.9)


def left_low(facts: dict | None = None, **traces) -> bool:
    return seen("learning_rate_left_low", run_of(facts, **{"update_ratio": 1e-3, "loss": SLOW, "lr": 0.003} | traces))


def test_a_rate_is_left_low_when_updates_are_small_and_the_loss_is_still_falling():
    assert left_low(update_ratio=1.9e-3) and not left_low(update_ratio=2.1e-3)
    assert left_low(update_ratio=1.1e-4) and not left_low(update_ratio=0.9e-4)
    assert left_low(loss=falls_to(2, 1.2, 1.02, 0.9)) and not left_low(loss=falls_to(2, 1.2, 0.98, 0.9))
    assert left_low(loss=falls_to(1.5, 1.2, 0.8, 0.52)) and not left_low(loss=falls_to(1.5, 1.2, 0.8, 0.48))
    assert left_low(loss=falls_to(2.1, 1.8, 1.5, 1.15)) and not left_low(loss=falls_to(2.1, 1.8, 1.5, 1.25))
    assert not left_low(loss=falls_to(1.1, 1.3, 1.2, 0.9)), "it rose on the way"
    assert left_low(lr=np.linspace(0.003, 0.00298, STEPS)) and not left_low(lr=np.linspace(0.003, 0.0029, STEPS))


def test_nor_is_it_the_rate_where_a_clip_or_huge_weights_hold_the_updates_down():
    norms = np.ones(STEPS)
    norms[:180] = 3.0
    assert left_low({"clip": 2.0, "clip_by": "norm"}, grad_norm_total=norms)
    norms[:220] = 3.0
    assert not left_low({"clip": 2.0, "clip_by": "norm"}, grad_norm_total=norms)
    for first, is_seen in ((4.5, True), (4.7, False)):
        loss = falls_to(2.0, 1.7, 1.3, 0.9)
        loss[0] = first
        assert left_low(loss=loss) == is_seen


def bouncing(level: float, climb: float) -> np.ndarray:
    """Up and down around a level, so that the mean climb between validations is this share of it."""
    return level * (1 + climb * (-1.0) ** np.arange(17))


RESTLESS = {"probe_loss": bouncing(0.6, 0.1), "loss": falls_to(0.8, 0.7, 0.6, 0.6), "update_ratio": 0.02, "lr": 0.1}


def high_late(facts: dict | None = None, **traces) -> bool:
    return seen("learning_rate_too_high_late", run_of(facts, **RESTLESS | traces))


def small_batch(facts: dict | None = None, **traces) -> bool:
    return seen("batch_too_small", run_of({"batch_length": 32} | (facts or {}), **RESTLESS | traces))


@pytest.mark.parametrize(
    ("is_seen", "climb", "high", "falling"), [(high_late, 0.055, 0.4, 0.68), (small_batch, 0.04, 0.55, 0.75)]
)
def test_a_loss_is_restless_when_it_climbs_again_and_again_and_gets_no_lower(is_seen, climb, high, falling):
    assert is_seen()
    assert is_seen(probe_loss=bouncing(0.6, 1.1 * climb)) and not is_seen(probe_loss=bouncing(0.6, 0.9 * climb))
    assert not is_seen(probe_loss=np.linspace(0.7, 0.5, 17))
    near = {"loss": falls_to(0.8, 0.6, 0.5, 0.5)}
    assert is_seen(probe_loss=bouncing(1.05 * high, 0.1), **near)
    assert not is_seen(probe_loss=bouncing(0.95 * high, 0.1), **near)
    assert is_seen(loss=falls_to(0.9, 0.8, 0.7, 0.7 * (falling + 0.02)))
    assert not is_seen(loss=falls_to(0.9, 0.8, 0.7, 0.7 * (falling - 0.02)))
    assert is_seen(update_ratio=0.011) and not is_seen(update_ratio=0.009)
    assert is_seen(lr=np.linspace(0.1, 0.055, STEPS)) and not is_seen(lr=np.linspace(0.1, 0.045, STEPS))


def test_the_size_of_the_batch_says_which_of_the_two_it_is():
    assert small_batch() and not high_late({"batch_length": 32})
    assert small_batch({"batch_length": 32}) and not small_batch({"batch_length": 33})
    assert high_late({"batch_length": 48}) and not high_late({"batch_length": 47})
    assert high_late({"batch_length": None}) and not small_batch({"batch_length": None})


DROWNED = {"probe_loss": bouncing(2.1, 0.02), "loss": np.full(400, 2.1), "update_ratio": 0.07, "lr": 0.02}


def drowned(size: int = 4, **traces) -> bool:
    return seen("batch_too_small", run_of({"batch_length": size, "classes": 10}, **DROWNED | traces))


def test_a_tiny_batch_whose_noise_drowns_the_gradient_hardly_learns_and_drifts():
    assert drowned(8) and not drowned(9)  # VERY_FEW; then DRIFTING, SLIGHT, LITTLE and FELL
    assert drowned(update_ratio=0.045) and not drowned(update_ratio=0.035)  # learning slowly 0.028, drowned 0.07
    assert drowned(probe_loss=bouncing(2.1, 0.012)) and not drowned(probe_loss=bouncing(2.1, 0.008))
    chance = np.log(10)
    assert drowned(loss=np.full(400, 0.94 * chance)) and not drowned(loss=np.full(400, 0.96 * chance))
    assert drowned(probe_loss=bouncing(0.72 * chance, 0.02)) and not drowned(probe_loss=bouncing(0.68 * chance, 0.02))


def test_a_run_that_never_learned_or_was_thrown_back_is_neither():
    bad = {"probe_loss": bouncing(1.8, 0.1)}
    assert high_late(loss=np.r_[2.3, np.full(399, 1.9)], **bad) and not high_late(loss=np.full(400, 2.0), **bad)
    assert small_batch(loss=np.r_[2.3, np.full(399, 1.55)], **bad)
    assert not small_batch(loss=np.r_[2.3, np.full(399, 1.65)], **bad)
    assert high_late(loss=falls_to(0.5, 0.43, 0.6, 0.6)) and not high_late(loss=falls_to(0.5, 0.38, 0.6, 0.6))
    assert high_late(loss=np.r_[2.3, np.full(399, 0.31)]) and not high_late(loss=np.r_[2.3, np.full(399, 0.29)])


def warmup_missing(ratio: float = 1.4, at: int = 0, last: float = 0.4, first_rate: float = 0.03, late: float = 1.2):
    updates = np.full((STEPS, 3), 0.02)
    updates[at, 1] = ratio
    lr, entropy = np.full(STEPS, 0.03), np.linspace(2.7, last, 17)[:, None] * np.ones(4)
    lr[0] = first_rate
    loss = falls_to(2.0, 1.6, 1.4, late)
    return seen("warmup_missing", run_of(update_ratio=updates, lr=lr, attention_entropy=entropy, loss=loss))


def test_a_warm_up_is_missing_when_the_first_updates_are_violent_and_attention_narrows():
    assert warmup_missing()
    assert warmup_missing(ratio=0.55) and not warmup_missing(ratio=0.45)
    assert warmup_missing(at=9) and not warmup_missing(at=10)
    assert warmup_missing(last=0.78) and not warmup_missing(last=0.84)
    assert warmup_missing(first_rate=0.016) and not warmup_missing(first_rate=0.014)
    assert warmup_missing(late=0.32) and not warmup_missing(late=0.28)
    assert not warmup_missing(last=np.nan)


# --- momentum -------------------------------------------------------------------------------------

WAVES = np.interp(VALIDATIONS, (0, 100, 200, 300, 400), (2.3, 0.6, 1.4, 0.7, 1.1))


def flies_past(momentum: float = 0.999, **traces) -> bool:
    return seen("momentum_too_high", run_of({"momentum": momentum}, **{"probe_loss": WAVES} | traces))


def test_momentum_is_too_high_when_the_loss_rises_again_after_small_first_updates():
    assert flies_past() and flies_past(0.99) and flies_past(1.0)
    assert flies_past(0.981) and not flies_past(0.979) and not flies_past(0.9)
    assert not seen("momentum_too_high", run_of(probe_loss=WAVES)), "a run that does not know its momentum"
    assert FAILURES["momentum_too_high"].signature(run_of({"momentum": 0.999}, probe_loss=WAVES)).onset == 150


def test_nor_is_it_momentum_where_the_loss_stays_low_or_the_rate_itself_is_too_high():
    assert flies_past(update_ratio=0.29) and not flies_past(update_ratio=0.31)
    for peak, is_seen in ((0.92, True), (0.88, False)):  # 1.5 times the lowest before, 0.6
        assert flies_past(probe_loss=np.interp(VALIDATIONS, (0, 100, 200, 400), (2.3, 0.6, peak, 0.59))) == is_seen
    for end, is_seen in ((0.40, True), (0.30, False)):  # 0.15 of ln 10 is 0.345
        assert (
            flies_past(probe_loss=np.interp(VALIDATIONS, (0, 100, 200, 250, 400), (2.3, 0.5, 1.2, end, end))) == is_seen
        )
    falling = np.linspace(2.3, 0.8, len(VALIDATIONS))
    assert not flies_past(probe_loss=falling), "slow, and no wave"
    assert not flies_past(probe_loss=WAVES - 1.0), "losses below 0"
    for steps in (1, 3, 40):
        for odd in ({"loss": np.nan}, {"update_ratio": np.nan}, {"probe_loss": np.nan}):
            assert not seen("momentum_too_high", hand_made(steps, {"momentum": 0.999}, **odd))


def test_the_highest_momentum_of_all_optimizers_is_recorded():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    groups = [{"params": weights[:1]}, {"params": weights[1:2], "momentum": 0.99}]
    sgd, adam = torch.optim.SGD(groups, lr=0.1), torch.optim.Adam(weights[2:], betas=(0.95, 0.999))
    assert momentum_of([sgd]) == 0.99 and momentum_of([adam]) == 0.95 and momentum_of([sgd, adam]) == 0.99
    assert momentum_of([torch.optim.Adagrad(weights)]) == momentum_of([]) == 0
