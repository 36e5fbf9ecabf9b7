"""Look-alikes and lead times: worked out by hand on either side of each threshold, then on real flat runs."""

import numpy as np
import pytest
from helpers import hand_made
from played import made_of, played

from labkit.diagnosis import look_alikes
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.recording.traces import RANGES, Trace

NAMES = list(FAILURES)
RANGE = {each.words: each for each in RANGES}


def flat(value: float = 2.0, steps: int = 100, **traces) -> Run:
    """A healthy run whose losses never move."""
    still = {"loss": value, "val_loss": value, "probe_loss": value}
    return hand_made(steps, **still | traces)


def spiked(factor: float, at: int = 0, steps: int = 100) -> Run:
    losses = np.full(steps, 2.0)
    losses[at] *= factor
    return flat(loss=losses, steps=steps)


def study(sick: Run, healthy: Run | None = None, name: str = "dead_relu"):
    return made_of(name, healthy=healthy or flat(), sick=sick)


# --- look-alikes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "alike"), [(1.0, True), (1.04, True), (1.06, False), (0.96, True), (0.94, False)])
def test_losses_look_alike_when_they_typically_differ_by_less_than_five_percent(factor, alike):
    difference = look_alikes.loss_difference(flat(2.0), flat(2.0 * factor))
    if alike:
        assert difference == pytest.approx(max(factor, 1 / factor) - 1)
    else:
        assert difference is None
    assert look_alikes.loss_difference(flat(2.0 * factor), flat(2.0)) == difference


@pytest.mark.parametrize(("factor", "alike"), [(1.24, True), (1.26, False), (1 / 1.24, True), (1 / 1.26, False)])
def test_and_never_by_more_than_a_quarter(factor, alike):
    # The smoothed loss begins at the first loss itself, so one first step far off is the worst place.
    difference = look_alikes.loss_difference(flat(), spiked(factor))
    assert (difference is not None) == alike
    assert not alike or 0 < difference < 0.01


def test_typically_is_half_of_the_time():
    a_third = np.r_[np.full(65, 2.0), np.full(35, 2.4)]  # a fifth apart, on average over five percent
    assert look_alikes.loss_difference(flat(), flat(loss=a_third)) == pytest.approx(0)
    assert look_alikes.loss_difference(flat(), flat(loss=a_third[::-1])) == pytest.approx(0, abs=0.04)
    two_thirds = np.r_[np.full(35, 2.0), np.full(65, 2.4)]
    assert look_alikes.loss_difference(flat(), flat(loss=two_thirds)) is None


@pytest.mark.parametrize(("steps", "alike"), [(49, False), (50, True)])
def test_under_fifty_steps_in_common_nothing_can_be_said(steps, alike):
    assert (look_alikes.loss_difference(flat(steps=200), flat(steps=steps)) is not None) == alike
    assert (look_alikes.loss_difference(flat(steps=steps), flat(steps=steps)) is not None) == alike


def test_only_the_common_stretch_is_compared():
    longer = hand_made(120, loss=np.r_[np.full(60, 2.0), np.full(60, 9.0)])
    assert look_alikes.loss_difference(longer, flat(steps=60)) == pytest.approx(0)
    assert look_alikes.loss_difference(longer, flat(steps=80)) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_losses_that_are_not_finite_and_positive_are_no_look_alikes(value):
    assert look_alikes.loss_difference(flat(value), flat(value)) is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nor_is_one_that_ends_so(value):
    broken = flat(loss=np.r_[np.full(99, 2.0), value])
    assert look_alikes.loss_difference(broken, flat()) is None
    assert look_alikes.loss_difference(broken, broken) is None


def test_every_pair_that_looks_alike_is_found_and_no_other():
    one, two, three = (study(flat(value), name=name) for value, name in zip((2.0, 2.02, 1.0), NAMES, strict=False))
    [pair] = look_alikes.look_alikes([one, two, three])
    assert (pair.one, pair.other) == (NAMES[0], NAMES[1])
    assert pair.difference == pytest.approx(0.01)
    assert look_alikes.look_alikes([one]) == look_alikes.look_alikes([]) == []


def test_the_separating_instrument_is_the_one_furthest_apart_of_those_outside_their_range():
    # Both update ratios are healthy, though two powers of ten apart; the gradient ratio of one is not.
    one = study(flat(update_ratio=0.0015, grad_norm=1.0), name=NAMES[0])
    faint = np.tile([0.01, 1.0, 1.0], (100, 1))
    other = study(flat(update_ratio=0.15, grad_norm=faint), name=NAMES[1])
    [pair] = look_alikes.look_alikes([one, other])
    assert pair.instrument == "first / last layer"
    assert pair.readings == pytest.approx((1.0, 0.01))
    # An update ratio outside its range, and further apart, takes its place.
    other = study(flat(update_ratio=1e-6, grad_norm=faint), name=NAMES[1])
    [pair] = look_alikes.look_alikes([one, other])
    assert (pair.instrument, pair.readings) == ("update / weight", pytest.approx((0.0015, 1e-6)))


def test_an_exact_zero_is_far_from_everything():
    silent = np.tile([0.0, 1.0, 1.0], (100, 1))
    [pair] = look_alikes.look_alikes([study(flat(), name=NAMES[0]), study(flat(grad_norm=silent), name=NAMES[1])])
    assert (pair.instrument, pair.readings) == ("first / last layer", (1.0, 0.0))


def test_where_every_instrument_is_in_its_range_none_is_named():
    studies = [study(flat(), name=NAMES[0]), study(flat(update_ratio=0.1), name=NAMES[1])]
    [pair] = look_alikes.look_alikes(studies)
    assert (pair.instrument, pair.readings) == ("", ())
    assert "no instrument separates them" in look_alikes.tables_as_text(studies)


@pytest.mark.parametrize("lost", ["grad_norm_total", "update_ratio", "grad_norm"])
def test_an_instrument_without_a_reading_separates_nothing(lost):
    dead = np.full((5, 4), 0.9)
    one, other = study(flat(**{lost: np.nan}), name=NAMES[0]), study(flat(dead=dead), name=NAMES[1])
    [pair] = look_alikes.look_alikes([one, other])
    assert pair.instrument == "dead units"


# --- when the loss tells --------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "step"), [(3.1, 30), (2.9, None)])
def test_the_loss_alarms_at_three_times_its_first_value(factor, step):
    assert look_alikes.loss_alarm(study(spiked(factor, at=30))) == step


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_loss_alarms_when_it_is_not_finite(value):
    losses = np.full(100, 2.0)
    losses[42] = value
    assert look_alikes.loss_alarm(study(flat(loss=losses))) == 42


@pytest.mark.parametrize(("factor", "alarms"), [(2.1, True), (1.9, False)])
def test_the_loss_alarms_when_it_stays_at_twice_that_of_the_healthy_twin(factor, alarms):
    behind = np.r_[np.full(20, 2.0), np.full(80, 2.0 * factor)]
    step = look_alikes.loss_alarm(study(flat(loss=behind)))
    assert (step is not None) == alarms
    if alarms:
        smooth = flat(loss=behind).smoothed()
        assert step == np.flatnonzero(smooth > 4.0)[0] > 40  # a while after: one watches the smoothed loss
    twin = flat(2.0 / factor)
    assert look_alikes.loss_alarm(study(flat(2.0), twin)) == (0 if alarms else None)


@pytest.mark.parametrize(("factor", "step"), [(1.6, 75), (1.4, None)])
def test_the_loss_alarms_when_validation_has_risen_by_half_from_its_lowest(factor, step):
    val_loss = [2.0, 1.0, 1.0, factor, factor]  # evaluated at steps 0, 25, 50, 75 and 100
    assert look_alikes.loss_alarm(study(flat(val_loss=val_loss))) == step


def test_the_first_alarm_counts():
    losses = np.full(100, 2.0)
    losses[60] = np.nan
    assert look_alikes.loss_alarm(study(flat(loss=losses, val_loss=[2, 1, 9, 9, 9]))) == 50
    assert look_alikes.loss_alarm(study(flat(loss=losses, val_loss=[2, 1, 1, 9, 9]))) == 60


def test_a_run_that_ended_early_is_compared_as_far_as_it_goes():
    short = hand_made(10, loss=np.r_[np.full(8, 2.0), np.nan, np.nan])
    assert look_alikes.loss_alarm(study(short, healthy=flat())) == 8
    assert look_alikes.loss_alarm(study(flat(), healthy=flat(steps=10))) is None


# --- when an instrument tells ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [each.words for each in RANGES if each.name in look_alikes.SERIES])
def test_a_healthy_run_is_inside_every_range(name):
    assert look_alikes.first_outside(flat(), RANGE[name]) is None


@pytest.mark.parametrize("value", [0.09, 30.1, np.nan, np.inf])
def test_outside_is_below_above_or_not_a_number(value):
    band = Trace("grad_norm_total", "mine", low=0.1, high=30)
    values = np.ones(100)
    values[[17, 90]] = value
    assert look_alikes.first_outside(flat(grad_norm_total=values), band) == 17
    values[[17, 90]] = 0.1  # the ends belong to it
    assert look_alikes.first_outside(flat(grad_norm_total=values), band) is None


def test_an_evaluation_is_outside_at_its_own_step():
    dead = np.full((5, 4), 0.1)
    dead[3:, 1] = 0.9
    assert look_alikes.first_outside(flat(dead=dead), RANGE["dead units"]) == 75
    as_many = hand_made(5, dead=np.r_[np.full((4, 4), 0.1), np.full((1, 4), 0.9)])  # five steps, five evaluations
    assert len(as_many["step"]) == len(as_many["val_step"])
    assert look_alikes.first_outside(as_many, RANGE["dead units"]) == as_many["val_step"][-1] == 5


def test_lead_time_is_how_many_steps_before_the_loss():
    losses, sizes = np.full(100, 2.0), np.ones(100)
    losses[60:], sizes[20:] = np.nan, 1e5
    updates = np.full((100, 3), 0.01)
    updates[70:, 1] = 0.9
    sick = flat(loss=losses, grad_norm_total=sizes, update_ratio=updates)
    [row] = look_alikes.lead_times([study(sick)])
    assert (row.name, row.loss) == ("dead_relu", 60)
    assert row.instruments == {"gradient norm": 20, "update / weight": 70}
    assert row.lead("gradient norm") == 40 and row.lead("update / weight") == -10
    assert row.lead("dead units") is None


def test_what_leaves_its_range_in_the_healthy_twin_too_is_no_sign():
    loud = flat(grad_norm_total=100.0)
    assert look_alikes.lead_times([study(loud)])[0].instruments == {"gradient norm": 0}
    assert look_alikes.lead_times([study(loud, healthy=loud)])[0].instruments == {}


def test_there_is_no_lead_where_the_loss_never_tells():
    [row] = look_alikes.lead_times([study(flat(grad_norm_total=100.0))])
    assert row.loss is None and row.lead("gradient norm") is None


def test_every_series_is_one_number_per_step_or_evaluation():
    run = played("dead_relu").sick
    for trace, read in look_alikes.SERIES.items():
        assert len(read(run)) == len(run["val_step"] if trace in ("dead", "gap") else run["step"])
    assert {each.name for each in RANGES} >= look_alikes.SERIES.keys()


def test_a_reading_is_the_typical_value():
    updates = np.full((100, 3), 0.01)
    updates[:, 1] = 0.03
    updates[:10, 1] = [np.nan] * 5 + [5.0] * 5
    assert look_alikes.reading(flat(update_ratio=updates), "update_ratio") == pytest.approx(0.03)
    assert look_alikes.reading(flat(weight_norm=np.tile([2.0, 3.0, 6.0], (100, 1))), "weight_norm") == pytest.approx(7)


# --- real runs ------------------------------------------------------------------------------------

FLAT = ("dead_relu", "vanishing_gradients", "learning_rate_too_low")


def test_three_real_failures_leave_the_loss_equally_flat_and_instruments_tell_them_apart():
    pairs = look_alikes.look_alikes([played(name) for name in (*FLAT, "too_few_samples", "learning_rate_too_high")])
    assert {frozenset((pair.one, pair.other)) for pair in pairs} == {
        frozenset((FLAT[0], FLAT[1])), frozenset((FLAT[0], FLAT[2])), frozenset((FLAT[1], FLAT[2])),
    }  # fmt: skip
    for pair in pairs:
        low, high = sorted(pair.readings)
        assert pair.difference < 0.05
        assert high > 100 * low or (low < 0.1 and high > 0.9)  # dead units are a share


def test_real_instruments_see_real_failures_before_the_loss():
    rows = {row.name: row for row in look_alikes.lead_times([played(name) for name in (*FLAT, "too_few_samples")])}
    assert rows["vanishing_gradients"].lead("first / last layer") > 5
    assert rows["learning_rate_too_low"].lead("update / weight") > 0
    assert rows["dead_relu"].lead("dead units") > 0
    assert rows["too_few_samples"].lead("validation gap") > 0
    assert "dead units" not in rows["learning_rate_too_low"].instruments


# --- in words -------------------------------------------------------------------------------------


def test_both_tables_in_words():
    studies = [played(name) for name in (*FLAT, "too_few_samples")]
    text = look_alikes.tables_as_text(studies)
    for pair in look_alikes.look_alikes(studies):
        assert f"{pair.one} / {pair.other}: losses within {pair.difference:.1%}" in text
    lines = {
        line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ") and "/" not in line
    }
    names = [each.words for each in RANGES if each.name in look_alikes.SERIES]
    for row in look_alikes.lead_times(studies):
        cells = ["." if row.lead(name) is None else f"{row.lead(name):+d}" for name in names]
        assert lines[row.name] == [str(row.loss), *cells]


def test_a_loss_that_never_tells_is_a_dash():
    text = look_alikes.tables_as_text([study(flat())])
    assert [line.split()[1] for line in text.splitlines() if line.strip().startswith("dead_relu")] == ["-"]
