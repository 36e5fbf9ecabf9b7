"""Flat ground, saddles, valleys and what becomes of generalisation: each threshold from both sides, by hand."""

import dataclasses
import importlib
import math
import warnings

import numpy as np
import pytest
from helpers import hand_made

from labkit.diagnosis.diagnose import evidence_of
from labkit.failures.catalogue import FAILURES
from labkit.failures.signs import flat_start
from labkit.recording.run import Run

ABOVE, BELOW = 1.03, 0.97


def constants(name: str):
    return importlib.import_module(f"labkit.failures.{FAILURES[name].topic}.{name}")


def seen(name: str, run: Run) -> bool:
    return evidence_of(FAILURES[name], run) is not None


NEW = ("plateau", "saddle_point", "sharp_valley", "sharp_minimum", "underfit", "too_much_dropout", "overconfidence")


@pytest.mark.parametrize("name", NEW)
def test_healthy_short_and_broken_runs_are_left_alone(name):
    assert not seen(name, hand_made())
    assert not seen(name, hand_made(facts={"dropouts": ["dropout1"], "top_eigenvalue": 9.0, "samples": 40}))
    for value in (math.nan, math.inf, 0.0):
        for trace in ("loss", "grad_norm", "grad_norm_total", "val_loss", "probe_loss", "update_ratio"):
            assert not seen(name, hand_made(**{trace: value}))
    one = hand_made(steps=1)
    first = {key: values[:1] for key, values in one.traces.items()}
    assert not seen(name, dataclasses.replace(one, traces=first))


def test_a_flat_start_ends_with_the_first_step_outside():
    losses = np.concatenate([np.full(30, 2.0), np.full(70, 1.0)])
    assert 30 <= flat_start(hand_made(100, loss=losses)) <= 31
    assert flat_start(hand_made(100, loss=2.0)) == 100
    assert flat_start(hand_made(100, loss=math.nan)) == 0


# --- plateau and saddle ---------------------------------------------------------------------------

PLATEAU, SADDLE = constants("plateau"), constants("saddle_point")


def flat(steps=300, length=150, slope=0.1, peak=1.0, growth=3.0, end=0.5, moves=0.01, bend=False) -> Run:
    """So many steps on the flat; the first layer's gradient grows by this factor on it, steadily or in one leap."""
    losses = np.concatenate([np.full(length, 2.3), np.full(steps - length, 2.3 * end)])
    total = np.where(np.arange(steps) < length, slope, peak)
    norms = np.ones((steps, 3))
    share = np.arange(steps) / (length - 1)
    norms[:, 0] = 1e-7 * growth ** np.clip(np.where(share > 0.95, 1, 0) if bend else share, 0, 1)
    return hand_made(steps, loss=losses, grad_norm_total=total, grad_norm=norms, update_ratio=moves)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (flat(length=PLATEAU.LONG + 1), True),
        (flat(length=PLATEAU.LONG - 2), False),
        (flat(length=300, end=1.0), False),  # no way down was ever found: nobody can tell
        (flat(end=PLATEAU.ESCAPED * BELOW), True),
        (flat(end=PLATEAU.ESCAPED * ABOVE), False),
        (flat(slope=PLATEAU.WEAK * BELOW), True),
        (flat(slope=PLATEAU.WEAK * ABOVE), False),
        (flat(growth=PLATEAU.GROWTH * BELOW), True),
        (flat(growth=PLATEAU.GROWTH * 1.5), False),
        (flat(moves=PLATEAU.MOVES * ABOVE), True),
        (flat(moves=PLATEAU.MOVES * BELOW), False),
    ],
)
def test_a_plateau_is_long_level_and_left_at_last(run, found):
    assert seen("plateau", run) == found


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (flat(length=SADDLE.LONG + 1, growth=1e5), True),
        (flat(length=SADDLE.LONG - 2, growth=1e5), False),
        (flat(length=300, growth=1e5, end=1.0), True),  # still on it at the end
        (flat(growth=SADDLE.GROWTH * 1.5), True),
        (flat(growth=SADDLE.GROWTH * BELOW), False),
        (flat(growth=1e5, bend=True), False),  # a leap is no exponential
        (flat(growth=0.0), False),
    ],
)
def test_a_saddle_is_left_along_an_exponential(run, found):
    assert seen("saddle_point", run) == found


def test_no_run_is_both():
    for growth in (1, 10, 90, 110, 900, 2000, 1e6):
        assert not (seen("plateau", flat(growth=growth)) and seen("saddle_point", flat(growth=growth)))


def test_a_saddle_needs_two_steps_however_short_it_may_be(monkeypatch):
    monkeypatch.setattr(SADDLE, "LONG", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not seen("saddle_point", hand_made(1)) and not seen("saddle_point", hand_made())


def test_a_saddle_says_how_fast_its_gradient_doubles():
    evidence = evidence_of(FAILURES["saddle_point"], flat(length=200, growth=2.0**20))
    assert "doubling every 10 steps" in evidence.seen or "doubling every 11 steps" in evidence.seen
    assert (evidence.onset, evidence.place) == (0, "layer1")


# --- sharp_valley ---------------------------------------------------------------------------------

VALLEY = constants("sharp_valley")


def zigzag(turns=1.0, rise=2.0, reach=2.08, steps=60) -> Run:
    """Signs that change at this share of the steps, a loss that ends at this multiple of its lowest."""
    flips = np.diff(np.floor(np.arange(steps + 1) * turns)) > 0
    means = np.cumprod(np.where(flips, -1.0, 1.0))[:, None] * np.ones((1, 2))
    losses = np.concatenate([np.full(steps // 2, 1.0), np.full(steps - steps // 2, rise)])
    run = hand_made(steps, loss=losses, grad_mean=means, facts={"top_eigenvalue": reach / 0.1})
    return dataclasses.replace(run, parameters=("layer1.weight", "layer1.bias"))


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (zigzag(), True),
        (zigzag(turns=0.5), False),
        (zigzag(turns=0.8), False),
        (zigzag(rise=VALLEY.RISE * 1.1), True),
        (zigzag(rise=VALLEY.RISE * 0.97), False),
        (zigzag(reach=VALLEY.BEYOND * ABOVE), True),
        (zigzag(reach=VALLEY.BEYOND * BELOW), False),
        (zigzag(reach=math.nan), False),
        (zigzag(steps=VALLEY.WINDOW - 1), False),
    ],
)
def test_a_sharp_valley_turns_every_gradient_round_and_the_loss_up(run, found):
    assert seen("sharp_valley", run) == found


def test_without_the_curvature_nobody_can_tell_a_valley():
    run = zigzag()
    del run.facts["top_eigenvalue"]
    assert not seen("sharp_valley", run)


# --- sharp_minimum --------------------------------------------------------------------------------

SHARP = constants("sharp_minimum")


def fitted(curvature=8.0, loss=0.03, accuracy=1.0, share=1.0) -> Run:
    facts = {"samples": 1000, "batch_length": round(1000 * share), "top_eigenvalue": curvature}
    return hand_made(probe_loss=loss, probe_accuracy=accuracy, facts=facts)


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (fitted(curvature=SHARP.SHARP * ABOVE), True),
        (fitted(curvature=SHARP.SHARP * BELOW), False),
        (fitted(curvature=math.nan), False),
        (fitted(share=SHARP.WHOLE * ABOVE), True),
        (fitted(share=SHARP.WHOLE * BELOW), False),
        (fitted(loss=SHARP.MATCHED[0] * ABOVE), True),
        (fitted(loss=SHARP.MATCHED[0] * BELOW), False),
        (fitted(loss=SHARP.MATCHED[1] * BELOW), True),
        (fitted(loss=SHARP.MATCHED[1] * ABOVE), False),
        (fitted(accuracy=SHARP.FITTED), True),
        (fitted(accuracy=SHARP.FITTED - 0.001), False),
    ],
)
def test_a_sharp_minimum_is_fitted_steep_and_reached_without_noise(run, found):
    assert seen("sharp_minimum", run) == found


# --- underfit -------------------------------------------------------------------------------------

UNDER = constants("underfit")


def full(high=0.65, gap=0.05, level=0.0, learned=0.35, moves=0.01, narrow=0.2) -> Run:
    """A training loss that ends at this share of ln 10, level since two thirds of the run."""
    end = high * math.log(10)
    probe = np.array([end / (1 - learned), end * 1.2, end * 1.1, end / (1 - level), end])
    run = hand_made(probe_loss=probe, val_loss=probe + gap, update_ratio=moves)
    run.traces["histogram"] = np.tile(np.array([784, 128, 10 * narrow, 10])[:, None], (5, 1, 2))
    return run


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (full(narrow=UNDER.NARROW * BELOW), True),
        (full(narrow=UNDER.NARROW * ABOVE), False),
        (full(high=UNDER.HIGH * ABOVE), True),
        (full(high=UNDER.HIGH * BELOW), False),
        (full(gap=UNDER.GAP * BELOW), True),
        (full(gap=UNDER.GAP * ABOVE), False),
        (full(gap=-UNDER.GAP * ABOVE), False),
        (full(level=UNDER.LEVEL * BELOW), True),
        (full(level=UNDER.LEVEL * ABOVE), False),
        (full(learned=UNDER.LEARNED * ABOVE), True),
        (full(learned=UNDER.LEARNED * BELOW), False),
        (full(moves=UNDER.MOVES * ABOVE), True),
        (full(moves=UNDER.MOVES * BELOW), False),
    ],
)
def test_underfitting_is_high_level_and_the_same_on_both_sides(run, found):
    assert seen("underfit", run) == found


# --- too_much_dropout -----------------------------------------------------------------------------

DROPOUT = constants("too_much_dropout")


def dropped(extra=0.35, high=0.45, dropouts=("dropout1",), mode=1.0) -> Run:
    probe = high * math.log(10)
    run = hand_made(loss=probe + extra * math.log(10), probe_loss=probe, facts={"dropouts": list(dropouts)})
    run.traces["train_mode"] = np.full(40, mode)
    return run


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (dropped(extra=DROPOUT.EXTRA * ABOVE), True),
        (dropped(extra=DROPOUT.EXTRA * BELOW), False),
        (dropped(high=DROPOUT.HIGH * ABOVE), True),
        (dropped(high=DROPOUT.HIGH * BELOW), False),
        (dropped(dropouts=()), False),
        (dropped(mode=0.0), False),
    ],
)
def test_too_much_dropout_makes_training_harder_than_the_probe(run, found):
    assert seen("too_much_dropout", run) == found


# --- overconfidence -------------------------------------------------------------------------------

LIMITS = constants("overconfidence")


def surer(rise=1.3, sure=0.06, lost=0.0, gap=0.4, skill=0.9, probe=0.001) -> Run:
    """A validation loss that ends at this multiple of its lowest, and a confidence above the accuracy.

    The loss on the training probe ends here, and the validation loss so far above it.
    """
    losses = (gap + probe) / rise * np.array([6, 2, 1, (1 + rise) / 2, rise])
    right = np.array([0.1, 0.3, skill, skill, skill - lost])
    run = hand_made(val_loss=losses, val_accuracy=right, probe_loss=np.array([2.3, 0.5, 0.1, 0.01, probe]))
    run.traces["val_confidence"] = right + sure
    return run


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (surer(rise=LIMITS.RISE * ABOVE), True),
        (surer(rise=LIMITS.RISE * BELOW), False),
        (surer(sure=LIMITS.OVERCONFIDENT * ABOVE), True),
        (surer(sure=LIMITS.OVERCONFIDENT * BELOW), False),
        (surer(skill=LIMITS.SKILL * ABOVE), True),
        (surer(skill=LIMITS.SKILL * BELOW), False),
        (surer(lost=LIMITS.KEPT * BELOW), True),
        (surer(lost=LIMITS.KEPT * ABOVE), False),
        (surer(gap=LIMITS.GAP * BELOW), True),
        (surer(gap=LIMITS.GAP * ABOVE), False),
        (surer(probe=LIMITS.MEMORISED * BELOW), True),
        (surer(probe=LIMITS.MEMORISED * ABOVE), False),
    ],
)
def test_overconfidence_needs_excess_confidence_a_kept_accuracy_and_memorised_training_images(run, found):
    assert seen("overconfidence", run) == found


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (surer(rise=1.21, sure=0.052, lost=0.0015, gap=0.396, skill=0.909, probe=0.0009), True),  # its own sick run
        (surer(rise=1.53, sure=0.052, lost=0.019, gap=0.331, skill=0.914, probe=0.041), False),  # Adam at 0.01
        (surer(rise=1.35, sure=0.050, lost=0.015, gap=0.311, skill=0.911, probe=0.055), False),  # clipped, LR 0.1
    ],
)
def test_overconfidence_on_the_numbers_measured_in_real_runs(run, found):
    assert seen("overconfidence", run) == found


def test_overconfidence_begins_where_the_validation_loss_is_lowest():
    assert evidence_of(FAILURES["overconfidence"], surer()).onset == 20
