"""Numbers that signatures read off a run, also off a run that is short, foreign or full of NaN."""

import math

import numpy as np
import pytest
from helpers import hand_made

from labkit.failures.signs import stuck
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, gradient_ratio, matrix_layers, running_median, typical, worst_dead


def test_the_fixed_loss_is_the_probes_or_else_the_smoothed_one():
    assert fixed_loss(hand_made(probe_loss=[3, 2, math.nan, 1])).tolist() == [3, 2, 1]
    foreign = Run({"loss": np.array([4.0, 2.0, 3.0])})
    assert fixed_loss(foreign) == pytest.approx(foreign.smoothed())


@pytest.mark.parametrize(
    ("last", "is_stuck"), [(2.0, True), (1.902, True), (1.898, False), (2.098, True), (2.102, False)]
)
def test_stuck_is_within_a_share_of_the_first_loss(last, is_stuck):
    assert stuck(hand_made(probe_loss=[2.0, 7.0, last])) == is_stuck


def test_stuck_takes_another_share_and_needs_two_numbers():
    assert stuck(hand_made(probe_loss=[2.0, 1.51]), share=0.25) and not stuck(
        hand_made(probe_loss=[2.0, 1.49]), share=0.25
    )
    assert not stuck(hand_made(probe_loss=[2.0])) and not stuck(hand_made(probe_loss=[math.nan, math.nan]))


def test_typical_is_the_median_of_what_is_finite():
    trace = np.array([[1.0, math.nan, 5.0], [2.0, math.nan, math.inf], [30.0, math.nan, 7.0]])
    found = typical(trace)
    assert found[[0, 2]].tolist() == [2, 6] and np.isnan(found[1])
    assert np.isnan(typical(np.zeros((0, 2)))).all()


def test_the_running_median_does_not_lag_ignores_a_spike_and_claims_nothing_at_the_ends():
    steps = np.arange(11.0)
    found = running_median(np.where(steps == 5, 900.0, steps), 5)
    assert np.isnan(found[[0, 1, 9, 10]]).all()
    assert found[[2, 3, 7, 8]].tolist() == [2, 3, 8, 8] and found[5] == 6  # 3, 4, 900, 6, 7
    holed = running_median(np.where(steps == 5, math.nan, steps), 5)
    assert np.isnan(holed[5]) and holed[4] == 3.5
    assert np.isnan(running_median(steps[:3], 5)).all() and running_median(steps[:0], 5).size == 0


def test_matrix_layers_leave_out_the_vectors():
    trace = np.arange(12.0).reshape(4, 3)
    values, names = matrix_layers(hand_made(grad_norm=trace, facts={"matrices": ["layer1", "layer3"]}), "grad_norm")
    assert names == ["layer1", "layer3"] and values.tolist() == trace[:, [0, 2]].tolist()
    foreign = Run({"grad_norm": trace}, layers=("a", "b", "c"))
    assert matrix_layers(foreign, "grad_norm")[1] == ["a", "b", "c"]


def test_the_gradient_ratio_is_first_over_last():
    trace = np.array([[1.0, 9.0, 4.0], [3.0, 9.0, 0.0]])
    assert gradient_ratio(hand_made(grad_norm=trace)).tolist() == [0.25, math.inf]


def test_the_worst_dead_layer_is_the_one_at_the_end():
    dead = np.array([[math.nan, 0.9, 0.1, math.nan], [math.nan, 0.2, 0.3, math.nan]])
    values, place = worst_dead(hand_made(dead=dead))
    assert values.tolist() == [0.1, 0.3] and place == "relu2"


def test_where_nothing_can_die_nothing_is_dead():
    assert worst_dead(Run({})) == (pytest.approx([0]), "")
    values, place = worst_dead(hand_made(dead=np.full((3, 4), math.nan)))
    assert values.tolist() == [0, 0, 0] and place == ""
