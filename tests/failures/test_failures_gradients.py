"""The signatures about gradients and weights: a hand-made run on either side of each threshold."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers import hand_made, tiny, trained
from torch import nn

import labkit
from labkit.diagnosis.diagnose import diagnose, evidence_of
from labkit.failures.catalogue import FAILURES
from labkit.failures.signs import unlearned
from labkit.recording.summaries import hidden_sizes, whole_norm

CHANCE = np.log(10)
OURS = (
    "exploding_gradients", "exploding_recurrent_gradients", "clipping_too_tight", "value_clipping_too_tight",
    "zero_init", "symmetric_init", "init_too_large", "head_init_too_large", "weight_collapse", "runaway_weights",
    "penalty_too_strong",
)  # fmt: skip


def seen(name: str, run):
    return evidence_of(FAILURES[name], run)


def ending(share: float) -> np.ndarray:
    """A probe loss that ends at this share of chance level."""
    return np.linspace(CHANCE, share * CHANCE, 5)


# --- any run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_a_healthy_run_shows_none_of_it(name):
    assert seen(name, hand_made()) is None


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("steps", [1, 2, 30])
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
@pytest.mark.filterwarnings("error")
def test_runs_of_any_length_and_of_nothing_but_nan_are_read_without_a_crash(name, steps, value):
    whole = {key: trace for key, trace in hand_made(steps).traces.items() if key not in ("step", "val_step")}
    spoilt = hand_made(steps, facts={"clip": 1.0, "clip_by": "norm"}, **dict.fromkeys(whole, value))
    seen(name, spoilt)
    seen(name, dataclasses.replace(spoilt, facts={}, parameters=("layer1.weight_hh_l0",)))


@pytest.mark.parametrize("name", OURS)
def test_a_run_of_the_loss_alone_shows_none_of_it(name):
    bare = hand_made()
    assert seen(name, dataclasses.replace(bare, traces={"loss": bare["loss"]})) is None


# --- readings -----------------------------------------------------------------------------------------


def test_unlearned_compares_the_last_loss_with_chance_level():
    assert unlearned(hand_made(probe_loss=ending(0.55)), 0.5) and not unlearned(hand_made(probe_loss=ending(0.45)), 0.5)
    assert unlearned(hand_made(probe_loss=np.array([2.3, np.nan])), 0.5)
    nameless = hand_made(probe_loss=ending(0.9), facts={"classes": None})
    assert not unlearned(nameless, 0.5)
    counted = hand_made(probe_loss=ending(0.9), facts={"classes": None, "label_shares": [0.1] * 10})
    assert unlearned(counted, 0.5)


def test_the_whole_norm_is_taken_over_the_matrices():
    run = hand_made(weight_norm=np.tile([3.0, 4.0, 12.0], (40, 1)))
    assert whole_norm(run, "weight_norm") == pytest.approx(np.full(40, 13.0))
    first_two = dataclasses.replace(run, facts={"matrices": ["layer1", "layer2"]})
    assert whole_norm(first_two, "weight_norm") == pytest.approx(np.full(40, 5.0))


def test_hidden_sizes_are_those_of_the_first_pass():
    inputs, hidden, outputs = hidden_sizes(hand_made(activation_std=np.arange(160.0).reshape(40, 4)))
    assert (inputs, list(hidden), outputs) == (0.0, [1.0, 2.0], 3.0)


# --- exploding gradients ------------------------------------------------------------------------------


def deep(norm=1200.0, factor=1.5, hidden=4, share=1.05):
    """A stack whose activations grow by this factor per layer, with this gradient norm at the start."""
    names = ("inputs", *(f"relu{number}" for number in range(hidden)), "outputs")
    sizes = np.array([1.0, *factor ** np.arange(hidden), 1.0])
    run = hand_made(activation_std=np.tile(sizes, (40, 1)), grad_norm_total=norm, probe_loss=ending(share))
    return dataclasses.replace(run, activations=names)


def test_an_explosion_grows_through_a_deep_stack_before_the_first_update():
    found = seen("exploding_gradients", deep())
    assert found.onset == 0 and found.place == "layer1"
    assert "1.2e+03" in found.seen and "1.5 times" in found.seen
    assert seen("exploding_gradients", deep(norm=np.inf, share=np.nan))


@pytest.mark.parametrize("change", [{"norm": 900.0}, {"factor": 1.3}, {"hidden": 3}, {"share": 0.95}])
def test_no_explosion_on_the_other_side_of_each_threshold(change):
    assert seen("exploding_gradients", deep(**change)) is None


def test_a_gradient_that_is_large_only_later_has_another_cause():
    late = np.full(40, 1e6)
    late[0] = 2.0
    run = dataclasses.replace(deep(), traces=deep().traces | {"grad_norm_total": late})
    assert seen("exploding_gradients", run) is None


def recurrent(norm=330.0, share=0.33, largest=0, parameter="layer1.weight_hh_l0"):
    norms = np.ones((40, 3))
    norms[:, largest] = 300.0
    run = hand_made(grad_norm=norms, grad_norm_total=norm, probe_loss=ending(share))
    return dataclasses.replace(run, parameters=("layer1.weight_ih_l0", parameter, "layer3.weight"))


def test_a_recurrent_explosion_sits_in_the_recurrent_weight():
    found = seen("exploding_recurrent_gradients", recurrent())
    assert found.place == "layer1.weight_hh_l0" and found.onset == 0


@pytest.mark.parametrize("change", [{"norm": 270.0}, {"share": 0.27}, {"largest": 2}, {"parameter": "layer1.weight"}])
def test_no_recurrent_explosion_on_the_other_side_of_each_threshold(change):
    assert seen("exploding_recurrent_gradients", recurrent(**change)) is None


def test_the_two_explosions_do_not_answer_for_each_other():
    assert seen("exploding_gradients", recurrent()) is None
    assert seen("exploding_recurrent_gradients", deep()) is None


# --- clipping -----------------------------------------------------------------------------------------


def clipped(above=110.0, share=0.17, governed=900.0, unclipped=0, by="norm"):
    """Clipped to 0.01 at LR 0.1; `governed`: length of an update over LR times threshold."""
    norms = np.full(40, above * 0.01)
    norms[:unclipped] = 0.001
    updates = np.zeros((40, 3))
    updates[:, 0] = governed * 0.1 * 0.01
    return hand_made(
        grad_norm_total=norms, update_norm=updates, probe_loss=ending(share), facts={"clip": 0.01, "clip_by": by}
    )


def test_clipping_is_too_tight_where_every_step_is_cut_far_and_the_loss_stays_high():
    found = seen("clipping_too_tight", clipped())
    assert found.onset == 0 and "110 times" in found.seen
    assert seen("clipping_too_tight", clipped(unclipped=2))


@pytest.mark.parametrize(
    "change", [{"above": 90.0}, {"share": 0.13}, {"governed": 1100.0}, {"unclipped": 3}, {"by": "value"}]
)
def test_clipping_is_not_too_tight_on_the_other_side_of_each_threshold(change):
    assert seen("clipping_too_tight", clipped(**change)) is None


def by_value(above=1600.0, share=0.27, governed=9e4, unclipped=0, clip=1e-5):
    """Clipped by value at LR 0.1; `governed`: length of an update over LR times threshold."""
    largest = np.full((40, 2), above * clip)
    largest[:unclipped] = clip / 2
    updates = np.zeros((40, 3))
    updates[:, 0] = governed * 0.1 * clip
    run = hand_made(
        grad_max=largest * [1, 0.5], grad_min=-largest * [0.5, 0.5], update_norm=updates, probe_loss=ending(share),
        facts={"clip": clip, "clip_by": "value"},
    )  # fmt: skip
    return dataclasses.replace(run, parameters=("layer1.weight", "layer1.bias"))


def test_value_clipping_is_too_tight_where_the_largest_entry_is_cut_far():
    found = seen("value_clipping_too_tight", by_value())
    assert found.place == "layer1.weight" and "1,600 times" in found.seen
    assert seen("value_clipping_too_tight", by_value(unclipped=2))


@pytest.mark.parametrize("change", [{"above": 1400.0}, {"share": 0.23}, {"governed": 1.1e5}, {"unclipped": 3}])
def test_value_clipping_is_not_too_tight_on_the_other_side_of_each_threshold(change):
    assert seen("value_clipping_too_tight", by_value(**change)) is None


def test_clipping_by_norm_is_never_called_clipping_by_value():
    assert seen("value_clipping_too_tight", clipped()) is None


@pytest.mark.parametrize("by", ["norm", "value"])
def test_adam_is_not_harmed_by_a_tight_threshold_and_not_accused(by):
    run = trained(tiny(optimizer="adam", lr=0.003, clip=1e-4, clip_by=by, steps=30))
    assert run.clipped.mean() > 0.95
    assert seen("clipping_too_tight", run) is None and seen("value_clipping_too_tight", run) is None


# --- how weights start --------------------------------------------------------------------------------


def zeros(weight=0.0, gradient=0.0, share=0.97):
    gradients = np.full((40, 3), gradient)
    gradients[:, -1] = 0.1
    weights = np.full((40, 3), 1.0)
    weights[0] = [0.0, weight, 0.0]
    return hand_made(weight_norm=weights, grad_norm=gradients, probe_loss=ending(share))


def test_zero_init_has_weights_and_gradients_of_exactly_zero():
    found = seen("zero_init", zeros())
    assert found.place == "layer1" and "exactly 0" in found.seen


@pytest.mark.parametrize("change", [{"weight": 1e-9}, {"gradient": 1e-9}, {"share": 0.93}])
def test_no_zero_init_where_anything_is_not_exactly_zero_or_the_net_learns(change):
    assert seen("zero_init", zeros(**change)) is None


def test_a_single_layer_may_start_at_zero():
    single = dataclasses.replace(zeros(), facts={"classes": 10, "matrices": ["layer1"]})
    assert seen("zero_init", single) is None


def alike(twins=0.92, share=0.55):
    shares = np.full((5, 4), np.nan)
    shares[:, 1:3] = [0.0, twins]
    return hand_made(twins=shares, probe_loss=ending(share))


def test_symmetric_units_are_twins_from_the_start():
    found = seen("symmetric_init", alike())
    assert found.place == "relu2" and "92%" in found.seen and found.onset == 0


@pytest.mark.parametrize("change", [{"twins": 0.88}, {"share": 0.45}])
def test_no_symmetry_on_the_other_side_of_each_threshold(change):
    assert seen("symmetric_init", alike(**change)) is None


def test_units_that_become_alike_later_are_no_matter_of_init():
    later = alike()["twins"].copy()
    later[0, 2] = 0.0
    assert seen("symmetric_init", hand_made(twins=later, probe_loss=ending(0.55))) is None


def large(inputs=2.8, hidden=5.5, outputs=50.0, first=5.5, norm=900.0, share=0.11):
    losses = np.linspace(first * CHANCE, 1.0, 40)
    sizes = np.tile([inputs, 1.0, hidden, outputs], (40, 1))
    return hand_made(activation_std=sizes, loss=losses, grad_norm_total=norm, probe_loss=ending(share))


def test_a_large_init_has_large_hidden_activations_from_normalised_inputs():
    found = seen("init_too_large", large())
    assert found.place == "relu2" and found.onset == 0


@pytest.mark.parametrize("change", [{"inputs": 3.3}, {"hidden": 4.5}, {"first": 4.5}, {"share": 0.09}])
def test_no_large_init_on_the_other_side_of_each_threshold(change):
    """LARGE_INPUTS, LARGE, WRONG and SLOW."""
    assert seen("init_too_large", large(**change)) is None


def large_head(inputs=2.8, hidden=4.8, ratio=27.0, first=4.4, share=0.22):
    return large(inputs=inputs, hidden=hidden, outputs=ratio * hidden, first=first, share=share)


def test_a_large_head_has_outputs_far_above_its_hidden_layers():
    found = seen("head_init_too_large", large_head())
    assert found.place == "layer3" and "27 times" in found.seen


@pytest.mark.parametrize("change", [{"inputs": 3.3}, {"hidden": 5.3}, {"ratio": 23.0}, {"first": 3.6}, {"share": 0.18}])
def test_no_large_head_on_the_other_side_of_each_threshold(change):
    """LARGE_INPUTS, LARGE_HIDDEN, LARGE, WRONG and SLOW."""
    assert seen("head_init_too_large", large_head(**change)) is None


def test_the_two_large_inits_do_not_answer_for_each_other():
    assert seen("head_init_too_large", large(share=0.5)) is None
    assert seen("init_too_large", large_head(first=10.0)) is None


# --- where weights go ---------------------------------------------------------------------------------


def fading(left=0.045, share=0.92):
    return hand_made(weight_norm=np.geomspace(1, left, 40)[:, None] * np.full(3, 5.0), probe_loss=ending(share))


def test_weights_collapse_where_next_to_nothing_is_left():
    found = seen("weight_collapse", fading())
    assert found.onset == 9  # where half is left
    assert found.place == "layer1"


@pytest.mark.parametrize("change", [{"left": 0.055}, {"share": 0.88}])
def test_no_collapse_on_the_other_side_of_each_threshold(change):
    assert seen("weight_collapse", fading(**change)) is None


def penalised(share=0.9, paid=0.2, shrunk=0.2, left=1.0):
    """A first loss with this share of penalty; at the end these shares of loss, weight norm and probe loss."""
    first = 2.0 / (1 - share)
    return hand_made(
        loss=first * np.r_[1.0, np.full(39, paid)],
        weight_norm=np.geomspace(1, shrunk, 40)[:, None] * np.full(3, 5.0),
        probe_loss=np.linspace(2.0, 2.0 * left, 5),
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, True),
        ({"share": 0.81}, True),  # DOMINATES
        ({"share": 0.79}, False),
        ({"paid": 0.49}, True),  # PAID
        ({"paid": 0.51}, False),
        ({"shrunk": 0.39}, True),  # SHRUNK
        ({"shrunk": 0.41}, False),
        ({"left": 0.51}, True),  # LEFT
        ({"left": 0.49}, False),
        ({"left": np.nan}, False),
    ],
)
def test_a_penalty_is_too_strong_where_it_is_paid_with_the_weights(changes, named):
    assert bool(seen("penalty_too_strong", penalised(**changes))) is named


@pytest.mark.parametrize(("strength", "named"), [(1.0, True), (1e-3, False)])
def test_a_squared_penalty_is_named_before_the_collapse_that_it_causes(strength, named):
    run = trained(FAILURES["penalty_too_strong"].healthy.but(step=SQUARED[strength]))
    found = [each.name for each in diagnose(run)]
    assert found[:1] == (["penalty_too_strong"] if named else [])
    assert ("weight_collapse" in found) is named


def squared_penalty(strength):
    def step(training, x, y):
        training.optimizer.zero_grad()
        penalty = sum((weight**2).sum() for weight in training.model.parameters())
        loss = training.loss(x, y) + strength * penalty
        training.backward(loss)
        training.look(loss, x, y)
        training.update()

    return step


SQUARED = {strength: squared_penalty(strength) for strength in (1.0, 1e-3)}


@pytest.mark.parametrize(("strength", "named"), [(0.5, True), (1e-4, False)])
def test_a_penalty_is_found_in_a_foreign_regression(strength, named):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x.sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    with labkit.watch(net, optimizer, probe=(x, y), loss_fn=nn.functional.mse_loss, strict=True) as record:
        record.validation()
        for step in range(200):
            batch = slice(step % 4 * 64, step % 4 * 64 + 64)
            penalty = sum(weight.abs().sum() for weight in net.parameters())
            loss = nn.functional.mse_loss(net(x[batch]), y[batch]) + strength * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(loss, (x[batch], y[batch]))
        record.validation()
    assert ("penalty_too_strong" in [each.name for each in record.diagnose()]) is named


def growing(growth=2.7, last=1.0, slowest=1.0, share=0.55, steps=40):
    """Grows by `growth` in the second half, in the last quarter at `last` of the pace, in one layer more slowly."""
    pace = np.where(np.arange(steps) < 0.75 * steps, 1.0, last)
    logs = np.cumsum(pace) * 2 * np.log(growth) / (1 + last) / (steps / 2)
    layers = np.exp(logs[:, None] * [1.0, 1.0, slowest])
    return hand_made(steps, weight_norm=5 * layers, probe_loss=ending(share))


def test_weights_run_away_at_a_steady_pace_in_all_layers():
    found = seen("runaway_weights", growing())
    assert found.place == "layer1" and 0 < found.onset < 40
    assert seen("runaway_weights", growing(growth=6.0, last=0.85))
    assert seen("runaway_weights", growing(growth=6.0, slowest=0.55))


@pytest.mark.parametrize(
    "change",
    [{"growth": 2.3}, {"growth": 6.0, "last": 0.75}, {"growth": 6.0, "slowest": 0.45}, {"share": 0.45}, {"steps": 19}],
)
def test_no_runaway_on_the_other_side_of_each_threshold(change):
    """The growth itself, STEADY, ALIKE, HIGH and SHORTEST."""
    assert seen("runaway_weights", growing(**change)) is None


@pytest.mark.parametrize(("first", "last", "named"), [(1, 100, True), (1, 3.9, False), (1, 4.1, True), (3, 8, False)])
def test_weights_that_grow_in_a_straight_line_run_away_when_they_grow_far(first, last, named):
    """As with Adam and a decay of the wrong sign; a little linear growth is healthy: GROWN and STILL."""
    straight = 5 * np.linspace(first, last, 40)[:, None] * np.ones(3)
    assert bool(seen("runaway_weights", hand_made(weight_norm=straight, probe_loss=ending(0.9)))) is named


@pytest.mark.parametrize(("last", "named"), [(1.5, True), (1.4, False)])
def test_linear_growth_must_still_go_on_in_the_second_half(last, named):
    """STILL: the norm at the end over that in the middle; it grew far in both."""
    sizes = np.concatenate([np.linspace(1, 10, 20), np.linspace(10, 10 * last, 21)[1:]])[:, None] * np.full(3, 5.0)
    assert bool(seen("runaway_weights", hand_made(weight_norm=sizes, probe_loss=ending(0.9)))) is named


def test_weights_that_grew_at_once_and_then_stay_do_not_run_away():
    """A learning rate that is too high makes them large in a few steps."""
    sizes = np.concatenate([np.linspace(1, 50, 10), np.linspace(50, 60, 30)])[:, None] * np.ones(3)
    assert seen("runaway_weights", hand_made(weight_norm=sizes, probe_loss=ending(0.9))) is None
