"""Signatures for programs of any task: by the tests on the probe, the first weights and what the task allows."""

import dataclasses

import numpy as np
import pytest
import torch
from test_failures_other_tasks import CONSTANT, run_of, seen
from torch import nn

import labkit
from labkit.diagnosis.calibration import confidence, measured
from labkit.diagnosis.diagnose import diagnose, unsure
from labkit.failures.catalogue import FAILURES
from labkit.failures.signs import clipped_to, late_update, left_over, ruled_out

# What the tests on the probe find after a healthy run: the loss is 0.2 of that of a constant prediction.
HEALTHY = {
    "truth": 0.0, "swapped": 2.0 * CONSTANT, "loss": 0.2 * CONSTANT, "other_inputs": 2.0 * CONSTANT, "gradient": 0.5,
    "best_step": 0.02, "best_loss": 0.19 * CONSTANT,
}  # fmt: skip


def examined(facts: dict | None = None, left: float = 0.2, **results):
    """A run that ends with this share of the loss of a constant prediction left, and tests in units of that loss."""
    units = {"truth", "swapped", "loss", "other_inputs", "best_loss"}
    found = {name: CONSTANT * value if name in units else value for name, value in results.items()}
    traces = {name: np.linspace(1.0, left, 200 if name == "loss" else 5) for name in ("loss", "probe_loss", "val_loss")}
    return run_of(facts={"probe_tests": HEALTHY | found, **(facts or {})}, **traces)


def first_weights(**layers) -> dict:
    """Facts about layers given as (units, gain, alike)."""
    names = ("units", "gain", "alike")
    return {"first_weights": {name: dict(zip(names, map(float, each), strict=True)) for name, each in layers.items()}}


def test_a_healthy_run_of_any_task_has_no_failure():
    weights = first_weights(a=(32, 0.58, 0), b=(32, 1.4, 0), c=(1, 0.58, 0))
    assert diagnose(examined(weights | {"different_samples": 800})) == []


# --- the loss -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "named"), [(0.38, True), (0.42, False), (1.2, False)])  # BELOW: truth 1, loss 0.4
def test_a_loss_that_rates_other_outputs_far_better_than_perfect_ones(loss, named):
    run = examined(left=loss, truth=1.0, swapped=1.3, loss=loss, best_loss=loss)
    assert seen("loss_does_not_fit", run) is named


@pytest.mark.parametrize(("ends", "named"), [
    (lambda scores: scores.softmax(1), ["loss_does_not_fit"]),
    (lambda scores: scores, ["loss_does_not_fit"]),
    (lambda scores: scores.log_softmax(1), []),
])  # fmt: skip
def test_a_likelihood_of_what_is_no_logarithm_of_a_probability(ends, named):
    torch.manual_seed(0)
    centres, y = 2 * torch.randn(4, 8), torch.randint(4, (400,))
    x = centres[y] + torch.randn(400, 8)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    net.forward = lambda inputs: ends(nn.Sequential.forward(net, inputs))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    with labkit.watch(net, optimizer, probe=(x[:128], y[:128]), loss_fn=nn.functional.nll_loss, strict=True) as record:
        for step in range(150):
            batch = slice(step % 6 * 64, step % 6 * 64 + 64)
            loss = nn.functional.nll_loss(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(loss, (x[batch], y[batch]))
            if step % 30 == 29:
                record.validation()
    found = [each.name for each in record.diagnose()]
    assert found[:1] == named and "gradient_ascent" not in found


@pytest.mark.parametrize(("constant", "task", "truth", "name"), [
    (-1e9, "classes", -20.0, "loss_does_not_fit"),
    (-1e5, "classes", -20.0, None),  # BOTTOMLESS
    (-1e9, "numbers", -20.0, None),
    (-1e9, "classes", 20.0, "gradient_ascent"),
])  # fmt: skip
def test_a_loss_without_a_lowest_value_fits_or_has_a_flipped_sign(constant, task, truth, name):
    facts = {"task": task, "constant_loss": constant}
    run = examined(facts, left=-0.5, truth=truth, swapped=0.0, loss=-0.5, best_loss=-0.5)
    run = dataclasses.replace(run, traces=run.traces | {"loss": np.r_[0.5, np.full(len(run) - 1, -0.5)]})
    for each in ("loss_does_not_fit", "gradient_ascent"):
        assert seen(each, run) is (each == name)


def test_shapes_that_broadcast_are_not_a_loss_that_does_not_fit():
    """EQUAL: 0.005 and 0.02 of the loss of a constant prediction, on either side."""
    alike = {"truth": 2.0, "swapped": 2.005, "loss": 1.0, "best_loss": 1.0}
    assert seen("loss_does_not_fit", examined({"task": "classes"}, left=1.0, **alike))
    assert not seen("loss_does_not_fit", examined({"task": "numbers"}, left=1.0, **alike))
    assert seen("loss_does_not_fit", examined({"task": "numbers"}, left=1.0, **alike | {"swapped": 2.02}))


@pytest.mark.parametrize(("truth", "named"), [(-1.75, True), (-1.85, False), (-3.0, False)])  # FLIPPED: 0.1 of 2
def test_a_loss_that_is_lowest_for_other_targets_has_a_flipped_sign(truth, named):
    run = examined(left=-4.0, truth=truth, swapped=-2.0, loss=-4.0, best_loss=-4.0)
    assert seen("gradient_ascent", run) is named


@pytest.mark.parametrize(("truth", "other", "end", "named"), [
    (0.55, 1.0, 0.5, True), (0.45, 1.0, 0.5, False),  # UNAVOIDABLE
    (0.9, 1.03, 0.5, False),  # IGNORED
    (0.9, 1.0, 0.89, True), (0.9, 1.0, 0.91, False),  # SMALLER
])  # fmt: skip
def test_a_penalty_that_outweighs_the_rest(truth, other, end, named):
    run = examined(left=1.0, truth=truth, loss=1.0, other_inputs=other, best_loss=1.0)
    run.traces["weight_norm"] = np.linspace(5.0, 5.0 * end, len(run))[:, None].repeat(3, axis=1)
    assert seen("penalty_too_strong", run) is named


@pytest.mark.parametrize(("times", "left", "named"), [
    (32, 0.48, True), (32, 0.46, False),  # LEFT
    (22, 0.6, True), (20, 0.6, False), (47, 0.6, True), (49, 0.6, False), (1, 0.6, False),  # SAME
])  # fmt: skip
def test_a_loss_as_many_times_too_large_as_a_batch_has_samples(times, left, named):
    width = (CONSTANT / times) ** 0.5
    assert seen("summed_loss", examined({"batch_length": 32}, left=left, target_std=width)) is named
    for truth in (0.09, 0.11):  # ADDED
        penalty = examined({"batch_length": 32}, left=left, target_std=width, truth=truth)
        assert seen("summed_loss", penalty) is (named and truth < 0.1)


@pytest.mark.parametrize(("size", "named"), [(8, True), (7, False)])
def test_a_loss_a_few_times_too_large_may_have_a_weight(size, named):
    """MANY."""
    run = examined({"batch_length": size}, left=0.6, target_std=(CONSTANT / size) ** 0.5)
    assert seen("summed_loss", run) is named


# --- steps ----------------------------------------------------------------------------------------


def slow(longer=30.0, gain=0.1, left=0.8, **changes):
    update = 0.01  # of hand-made runs: 0.05 of 5
    return examined(left=left, loss=left, best_loss=left - gain, best_step=longer * update, **changes)


@pytest.mark.parametrize(("run", "named"), [
    (slow(), True),
    (slow(longer=13), True), (slow(longer=12), False),  # LONGER
    (slow(gain=0.013), True), (slow(gain=0.011), False),  # GAIN
    (slow(left=0.66), True), (slow(left=0.64), False),  # LEFT
    (slow(left=0.94), True), (slow(left=0.96), False),  # FALL
])  # fmt: skip
def test_a_learning_rate_left_low_by_the_best_step(run, named):
    assert seen("learning_rate_left_low", run) is named


def test_a_loss_that_bounces_is_not_that_of_a_learning_rate_left_low():
    for bump, named in ((0.019, True), (0.021, False)):  # BUMP
        run = slow()
        run.traces["probe_loss"] = CONSTANT * np.array([1.0, 0.9, 0.85, 0.85 + bump, 0.8])
        assert seen("learning_rate_left_low", run) is named


@pytest.mark.parametrize(("validated", "named"), [
    ([1.0, 0.97, 0.94, 0.91, 0.89], True), ([1.0, 0.97, 0.95, 0.93, 0.91], False),  # FOLLOWS: half of the fall of 0.2
    ([1.0, 0.9, 0.8, 0.8, 0.81], True), ([1.0, 0.9, 0.8, 0.8, 0.82], False),  # TURNED
])  # fmt: skip
def test_a_noisy_task_whose_probe_is_memorised_is_no_learning_rate_left_low(validated, named):
    run = slow()
    run.traces["val_loss"] = CONSTANT * np.array(validated)
    assert seen("learning_rate_left_low", run) is named


@pytest.mark.parametrize(("before", "named"), [(0.83, True), (0.815, False)])  # STILL: a tenth of the fall of 0.2
def test_a_loss_that_has_stopped_falling_is_not_that_of_a_learning_rate_left_low(before, named):
    run = slow()
    run.traces["probe_loss"] = CONSTANT * np.array([1.0, 0.9, 0.85, before, 0.8])
    assert seen("learning_rate_left_low", run) is named


@pytest.mark.parametrize(("ratio", "gain", "left", "dropouts", "named"), [
    (0.11, 0.03, 0.35, [], True), (0.13, 0.03, 0.35, [], False),  # SHORTER
    (0.05, 0.021, 0.35, [], True), (0.05, 0.019, 0.35, [], False),  # GAIN
    (0.05, 0.03, 0.31, [], True), (0.05, 0.03, 0.29, [], False),  # LEFT
    (0.05, 0.03, 0.35, ["drop"], False),
])  # fmt: skip
def test_updates_far_longer_than_the_best_step(ratio, gain, left, dropouts, named):
    facts = {"dropouts": dropouts, "dropout_rates": [0.2] * len(dropouts)}
    run = examined(facts, left=left, loss=left, best_loss=left - gain, best_step=0.01 * ratio)
    assert seen("learning_rate_too_high_late", run) is named


@pytest.mark.parametrize(
    ("size", "left", "named"), [(1, 0.48, True), (1, 0.46, False), (2, 0.5, False), (1, 0.96, False)]
)
def test_batches_of_one(size, left, named):
    """LEFT, TINY and UNLEARNED."""
    assert seen("batch_too_small", examined({"batch_length": size}, left=left)) is named


def test_a_loop_that_clips_shows_it_by_gradients_of_one_size():
    for noise, gradient, named in ((1e-7, 0.011, True), (1e-3, 0.011, False), (1e-7, 0.009, False)):  # LARGER
        run = examined(left=0.9, gradient=gradient)
        run.traces["grad_norm_total"] = 1e-4 * (1 + noise * np.sin(np.arange(len(run))))
        assert seen("clipping_too_tight", run) is named
    assert clipped_to(run, np.zeros(len(run))) == 0


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gains", "left", "named"), [
    ((5.1, 5.1, 0.6), 0.5, True), ((4.9, 4.9, 0.6), 0.5, False),  # GAIN, of the middle layer
    ((0.6, 0.6, 60), 0.5, False), ((11, 11, 11), 0.46, False),  # LEFT
])  # fmt: skip
def test_weights_that_start_too_large_in_most_layers(gains, left, named):
    layers = first_weights(**{name: (32, gain, 0) for name, gain in zip("abc", gains, strict=True)})
    assert seen("init_too_large", examined(layers, left=left)) is named


@pytest.mark.parametrize(("gains", "left", "named"), [
    ((0.6, 0.6, 21), 0.3, True), ((0.6, 0.6, 19), 0.3, False),  # GAIN
    ((2.2, 2.2, 21), 0.3, False),  # APART
    ((0.6, 0.6, 60), 0.21, True), ((0.6, 0.6, 60), 0.19, False),  # LEFT
])  # fmt: skip
def test_a_head_that_starts_too_large(gains, left, named):
    layers = first_weights(**{name: (32, gain, 0) for name, gain in zip("abc", gains, strict=True)})
    assert seen("head_init_too_large", examined(layers, left=left)) is named


@pytest.mark.parametrize(("alike", "gain", "left", "named"), [
    ((1, 1, 0, 0), 0.1, 0.3, True), ((1, 0, 0, 0), 0.1, 0.3, False),  # MOST
    ((1, 1, 1, 1), 0.1, 0.26, True), ((1, 1, 1, 1), 0.1, 0.24, False),  # LEFT
    ((1, 1, 1, 1), 0.0, 0.3, False),  # all 0 is another failure
])  # fmt: skip
def test_weights_that_start_as_one_number(alike, gain, left, named):
    layers = first_weights(**{name: (32, gain, each) for name, each in zip("abcd", alike, strict=True)})
    assert seen("symmetric_init", examined(layers, left=left)) is named


@pytest.mark.parametrize(("units", "left", "named"), [
    ((32, 1, 32, 1), 0.5, True), ((32, 2, 8, 1), 0.5, True), ((32, 3, 32, 1), 0.5, False),  # FEW
    ((32, 2, 7, 1), 0.5, False),  # WIDER
    ((32, 1, 32, 1), 0.46, False), ((32, 32, 1), 0.6, False),  # LEFT; one output is no bottleneck
])  # fmt: skip
def test_a_bottleneck(units, left, named):
    layers = first_weights(**{f"layer{index}": (each, 0.6, 0) for index, each in enumerate(units)})
    assert seen("underfit", examined(layers, left=left)) is named


@pytest.mark.parametrize(("growth", "half", "end", "update", "named"), [
    (6.0, 1.3, 2.0, 0.01, True), (4.9, 1.3, 2.0, 0.01, False),  # MOST
    (6.0, 1.1, 2.0, 0.01, False),  # ON
    (6.0, 1.3, 0.9, 0.01, False),  # no worse than a constant prediction
    (6.0, 1.3, 2.0, 0.31, False),  # GENTLE
])  # fmt: skip
def test_a_layer_that_grows_without_limit(growth, half, end, update, named):
    steps = 200
    size = np.interp(np.arange(steps), [0, steps // 2, steps - 1], [1.0, growth / half, growth])
    run = run_of(
        steps, probe_loss=np.linspace(min(end, 1.0) * 0.9, end, 5), loss=np.linspace(1, end, steps),
        weight_norm=np.stack([np.full(steps, 2.0), size, np.full(steps, 2.0)], axis=1),
        update_ratio=np.full((steps, 3), update),
    )  # fmt: skip
    assert seen("runaway_weights", run) is named


@pytest.mark.parametrize(("lowest", "named"), [(2.0 / 1.25, True), (2.0 / 1.15, False)])
def test_weights_may_grow_while_the_loss_still_falls(lowest, named):
    """RISEN: the last loss over the lowest. Large targets make the weights grow too."""
    size = np.interp(np.arange(200), [0, 100, 199], [1.0, 6.0 / 1.3, 6.0])
    run = run_of(
        200, probe_loss=np.r_[2.0, 2.0, 2.0, lowest, 2.0], loss=np.full(200, 2.0),
        weight_norm=np.stack([np.full(200, 2.0), size, np.full(200, 2.0)], axis=1),
        update_ratio=np.full((200, 3), 0.01),
    )  # fmt: skip
    assert seen("runaway_weights", run) is named


@pytest.mark.parametrize(("times", "named"), [(1.3e6, True), (0.7e6, False)])
def test_one_layer_that_grows_without_end_is_enough(times, named):
    """ENDLESS: the norm at the end over that in the middle."""
    grows = 5 * np.exp(np.log(times) * np.arange(-100, 100) / 99)
    weights = np.stack([np.full(200, 1e-9), grows, np.full(200, 1e-9)], axis=1)
    updates = np.full((200, 3), 0.5)  # not gentle: that would be another sign of it
    run = run_of(200, probe_loss=np.linspace(0.9, 3, 5), loss=np.linspace(1, 3, 200), weight_norm=weights,
                 update_ratio=updates)  # fmt: skip
    assert seen("runaway_weights", run) is named


# --- outputs and data -----------------------------------------------------------------------------


def rectified(least=-2.0, left=0.5, zeros=0.5):
    counts, ranges = np.zeros((5, 4, 32)), np.zeros((5, 4, 2))
    counts[:, -1, 0], counts[:, -1, 1] = 64 * zeros, 64 * (1 - zeros)
    ranges[:, -1] = 0.0, 3.0
    targets = {"target_min": least, "target_max": 3.0, "target_std": 1.0}
    run = examined({"task": "numbers"}, left=left, **targets)
    run.traces.update(histogram=counts, histogram_range=ranges)
    return run


@pytest.mark.parametrize(("run", "named"), [
    (rectified(), True),
    (rectified(least=-0.81), True), (rectified(least=-0.79), False),  # REACH
    (rectified(left=0.26), True), (rectified(left=0.24), False),  # MISSED
    (rectified(zeros=0.11), True), (rectified(zeros=0.09), False),  # ZEROS
])  # fmt: skip
def test_numbers_that_are_cut_off(run, named):
    assert seen("activation_on_outputs", run) is named


@pytest.mark.parametrize(("times", "left", "named"), [(1100, 1.0, True), (900, 1.0, False), (1e5, 0.89, False)])
def test_a_huge_sample_that_keeps_coming(times, left, named):
    """HUGE and LEFT."""
    run = examined(left=left)
    outliers, largest = np.zeros(len(run)), np.ones(len(run))
    outliers[::20], largest[::20] = 0.03, times
    run.traces.update(input_outliers=outliers, input_max=largest)
    assert seen("corrupt_sample", run) is named


@pytest.mark.parametrize(("samples", "left", "validated", "named"), [
    (12, 0.01, 0.9, True), (50, 0.01, 0.9, True), (51, 0.01, 0.9, False),  # HANDFUL
    (200, 0.01, 1.51, True), (201, 0.01, 1.51, False),  # FEW
    (200, 0.01, 1.49, False),  # RISE: with so many it may be all they can teach
    (12, 0.3, 0.71, True), (12, 0.3, 0.69, False), (51, 0.3, 1.51, False),  # APART
])  # fmt: skip
def test_too_few_samples_are_counted(samples, left, validated, named):
    run = run_of(
        probe_loss=np.linspace(1, left, 5), val_loss=np.linspace(1, validated, 5), facts={"different_samples": samples}
    )
    assert seen("too_few_samples", run) is named


# --- unsure, ruled out, calibrated ----------------------------------------------------------------

CALM = 4.5e-3  # updates that are neither those of a low learning rate nor those that only wrong labels could waste


@pytest.mark.parametrize(("left", "validated", "steps", "expected"), [
    (0.88, 0.9, 200, ["unsure"]), (0.86, 0.9, 200, []),  # UNLEARNED
    (0.88, 0.76, 200, ["unsure"]), (0.88, 0.74, 200, []),  # LEARNED: only the probe is difficult
    (0.3, 1.17, 200, ["unsure"]), (0.3, 1.13, 200, []),  # USELESS
    (0.88, 0.9, 45, []),  # too short to tell
])  # fmt: skip
def test_a_run_that_learned_nothing_is_unsure(left, validated, steps, expected):
    run = run_of(steps, loss=np.linspace(1, left, steps), probe_loss=np.linspace(1, left, 5),
                 val_loss=np.linspace(1.2, validated, 5), facts={"probe_tests": HEALTHY},
                 update_ratio=np.full((steps, 3), CALM))  # fmt: skip
    assert [found.name for found in diagnose(run)] == expected


@pytest.mark.parametrize(("accuracy", "gain", "expected"), [
    (0.37, 0.029, []), (0.355, 0.029, ["unsure"]),  # BETTER: 0.15 of what the most frequent class, a quarter, leaves
    (0.37, 0.031, ["unsure"]),  # GAIN: it may have just begun
])  # fmt: skip
def test_a_net_that_classifies_and_has_nothing_to_gain_is_as_good_as_noisy_labels_allow(accuracy, gain, expected):
    shares = {"classes": 4, "label_shares": [0.25] * 4}
    run = examined(shares, left=0.9, loss=0.9, best_loss=0.9 * (1 - gain), val_loss=np.linspace(1.2, 0.9, 5))
    run.traces["update_ratio"] = np.full((len(run), 3), CALM)
    run.traces["val_accuracy"] = np.linspace(0.25, accuracy, 5)
    assert [found.name for found in diagnose(run)] == expected


def test_validation_that_was_useful_once_and_rose_again_is_overfitting():
    for lowest, expected in ((1.13, []), (1.17, ["unsure"])):  # USELESS
        run = run_of(probe_loss=np.linspace(1, 0.1, 5), val_loss=[1.2, lowest, 1.3, 1.5, 2.0],
                     facts={"probe_tests": HEALTHY}, update_ratio=np.full((200, 3), CALM))  # fmt: skip
        assert [found.name for found in diagnose(run)] == expected


@pytest.mark.parametrize(("accuracy", "expected"), [(0.37, []), (0.355, ["unsure"])])
def test_a_validation_loss_above_a_constant_prediction_may_be_overconfidence(accuracy, expected):
    """BETTER: 0.15 of the 0.75 that always predicting the most frequent class gets wrong."""
    facts = {"probe_tests": HEALTHY, "classes": 4, "label_shares": [0.25] * 4}
    run = run_of(facts=facts, loss=np.linspace(1, 0.3, 200), probe_loss=np.linspace(1, 0.3, 5),
                 val_loss=np.linspace(1.2, 1.3, 5), update_ratio=np.full((200, 3), 2e-3))  # fmt: skip
    run.traces["val_accuracy"] = np.linspace(0.25, accuracy, 5)
    run.traces["probe_accuracy"] = np.linspace(0.25, 0.8, 5)
    assert [found.name for found in diagnose(run)] == expected


@pytest.mark.parametrize(("longer", "gain", "first"), [
    (51, 0.31, True), (49, 0.31, False),  # LONG
    (51, 0.29, False),  # MUCH
])  # fmt: skip
def test_unsure_asks_first_for_the_learning_rate_where_a_far_longer_step_would_gain_much(longer, gain, first):
    run = examined(left=0.9, loss=0.9, best_loss=0.9 * (1 - gain))
    run.facts["probe_tests"]["best_step"] = longer * late_update(run)
    [found] = unsure(run, dict.fromkeys(FAILURES))
    assert (found.candidates[0] == "learning_rate_too_low") is first
    assert ("times as long as an update would lower the loss" in found.seen) is first


def test_unsure_says_what_the_tests_exclude():
    run = examined(left=0.9, loss=0.9, best_loss=0.89, other_inputs=1.5)
    run.traces["update_ratio"] = np.full((len(run), 3), CALM)
    (found,) = diagnose(run)
    assert found.name == "unsure" and "the loss is lowest for perfect outputs" in found.seen
    assert {"loss_does_not_fit", "learning_rate_too_low", "dead_relu"} <= set(found.rules_out)
    assert not set(found.rules_out) & set(found.candidates) and FAILURES[found.candidates[0]].first_check in str(found)


@pytest.mark.parametrize(("results", "name", "excluded"), [
    ({}, "loss_does_not_fit", True), ({"truth": 1.1}, "loss_does_not_fit", False),  # PREFERS: swapped 2
    ({"best_step": 0.049}, "learning_rate_too_low", True),  # SHORT: updates of 0.01
    ({"best_step": 0.051, "best_loss": 0.15}, "learning_rate_too_low", False),
    ({"best_step": 0.5, "best_loss": 0.195}, "learning_rate_too_low", True),  # GAIN
    ({"other_inputs": 0.22}, "dead_relu", True), ({"other_inputs": 0.205}, "dead_relu", False),  # USED
])  # fmt: skip
def test_what_the_tests_on_the_probe_exclude(results, name, excluded):
    assert (name in ruled_out(examined(**results))) is excluded


def test_what_is_left_over_is_unknown_without_a_constant_prediction():
    assert left_over(examined(left=0.3)) == pytest.approx(0.3)
    assert np.isnan(left_over(run_of(facts={"constant_loss": -1.0})))


def test_confidence_is_what_was_measured():
    assert set(measured()) <= set(FAILURES)
    assert confidence("a mode of a notebook", 0.7) == 0.7
    assert confidence("learning_rate_too_high", 0.9) < confidence("weight_collapse", 0.9) < 0.97
    given = sum(count for _, count in measured().values())
    mean = sum(confidence(name, 0.0) * count for name, (_, count) in measured().items()) / given
    assert mean == pytest.approx(0.88, abs=0.02)  # never seen before, 0.82 to 0.89 were: calibration.py


# --- the smaller ones -----------------------------------------------------------------------------


def test_a_loss_without_a_lowest_value_that_starts_below_zero_is_ascent():
    for constant, named in ((-2e6, True), (-0.4e6, False)):  # BOTTOMLESS, of a first loss of 0.5
        run = run_of(
            loss=np.linspace(-1, -9, 200), probe_loss=np.linspace(-2, -9, 5), facts={"constant_loss": constant}
        )
        assert seen("gradient_ascent", run) is named


@pytest.mark.parametrize(("first", "times", "update", "soon", "named"), [
    (2.1, 6, 0.1, 1.4, True), (1.9, 6, 0.1, 1.4, False),  # HIGH
    (2.1, 4.9, 0.1, 1.4, False), (2.1, 6, 0.31, 1.4, False), (2.1, 6, 0.1, 1.2, False),  # HIGHER, SMALL, AT_ONCE
])  # fmt: skip
def test_a_loss_that_only_rises(first, times, update, soon, named):
    losses = np.r_[1.0, 0.8, np.full(8, (10 * soon - 0.8) / 9), np.full(190, soon)]  # the second one falls: noise
    run = run_of(loss=losses, probe_loss=np.linspace(first, first * times, 5), update_ratio=np.full((200, 3), update))
    assert seen("gradient_ascent", run) is named


def test_units_that_a_step_killed_before_the_first_evaluation():
    for alive, step, named in ((1.0, 10, True), (0.0, 10, False), (1.0, 0, False)):
        run = run_of(probe_loss=np.ones(5), loss=np.ones(200), update_ratio=np.full((200, 3), 0.1))
        run.traces["dead"] = np.full((5, 4), 1.0)
        run.traces["activation_std"][0] = alive
        run.traces["val_step"] = np.linspace(step, 200, 5).astype(int)
        assert seen("dead_relu_by_learning_rate", run) is named


@pytest.mark.parametrize(("rate", "gap", "named"), [(0.31, 0.04, True), (0.29, 0.04, False), (0.31, 0.02, False)])
def test_strong_dropout_at_validation_shows_by_a_smaller_gap(rate, gap, named):
    """STRONG and SOME."""
    facts = {"dropouts": ["drop"], "dropout_rates": [rate], "batch_norms": ["norm"]}
    run = run_of(facts=facts, val_loss=np.linspace(1.0, 0.2 + gap, 5), val_train_mode=np.ones(5))
    assert seen("dropout_at_validation", run) is named


@pytest.mark.parametrize(
    ("chance", "named"), [(0.45, True), (0.49, False), (0.0, True)]
)  # DOUBT: 0.6 of them are shared
def test_a_leak_is_more_than_chance_may_explain(chance, named):
    facts = {"val_trained_on": 0.6, "val_trained_on_by_chance": chance, "batch_length": 32}
    assert seen("leakage", run_of(facts=facts, val_input_std=np.ones(5))) is named
    assert not seen("leakage", run_of(facts=facts | {"batch_length": 1}, val_input_std=np.ones(5)))


def test_a_label_that_belongs_to_a_pair_may_change():
    for chance, named in ((0.4, True), (0.6, False)):  # COMMON
        facts = {"relabelled": 0.9, "val_trained_on_by_chance": chance}
        assert seen("labels_detached", run_of(facts=facts, loss=np.ones(200))) is named


def test_few_samples_are_not_imbalanced_classes():
    for samples, named in ((30, True), (29, False)):  # DIFFERENT
        facts = {"label_shares": [0.95, 0.05], "classes": 2, "batch_length": 32, "different_samples": samples}
        assert seen("class_imbalance", run_of(facts=facts, val_loss=np.linspace(2, 3, 5))) is named


def test_unequal_classes_are_harmful_where_validation_has_other_shares():
    """GAP: 0.3 of ln 2 is 0.42 of the constant loss, over 0.82 before the second validation and 0.3 at the end."""
    facts = {"label_shares": [0.95, 0.05], "classes": 2, "batch_length": 32}
    for first, last, named in ((1.3, 1.0, True), (1.15, 1.0, False), (2.0, 0.75, True), (2.0, 0.65, False)):
        run = run_of(facts=facts, val_loss=[1.0, first, 1.0, 1.0, last])
        assert seen("class_imbalance", run) is named


def test_weights_that_shrank_behind_a_batch_norm():
    for size, left, named in ((0.19, 0.61, True), (0.21, 0.61, False), (0.19, 0.59, False)):  # THIN, LEFT
        run = run_of(
            probe_loss=np.linspace(1, left, 5), weight_norm=np.linspace(5, 5 * size, 200)[:, None].repeat(3, 1)
        )
        assert seen("weight_collapse", run) is named


def test_small_gradients_of_a_small_loss_are_alive():
    for gradient, named in ((1.1e-6, True), (0.9e-6, False)):  # ALIVE, for a loss of a thousandth
        run = run_of(update_ratio=np.full((200, 3), 1e-5), grad_norm_total=np.full(200, gradient))
        run.traces["probe_loss"] = np.full(5, 1e-3)
        assert seen("learning_rate_too_low", run) is named


def test_the_absolute_error_of_probabilities():
    even = 2 * 19 / 400
    for first, left, named in ((1.09, 0.5, True), (1.11, 0.5, False), (1.0, 0.46, False)):  # EVEN, LEFT
        run = run_of(facts={"classes": 20, "task": "classes"}, probe_loss=np.linspace(1, left, 5))
        run.traces["loss"] = np.linspace(even * first, even * left, 200)
        assert seen("loss_does_not_fit", run) is named


def test_dead_units_are_no_learning_rate_left_low():
    for best, named in ((0.89, True), (0.899, False)):  # HOPELESS
        run = examined(left=0.9, loss=0.9, best_loss=best, best_step=0.0)
        run.traces["update_ratio"] = np.full((200, 3), 1e-3)
        assert seen("learning_rate_left_low", run) is named


def test_a_decayed_rate_is_judged_by_its_highest():
    for last, named in ((0.043, True), (0.041, False)):  # LONGER: 30 updates of the end are 12.5 of the highest
        run = slow()
        run.traces["lr"] = np.linspace(0.1, last, len(run))
        assert seen("learning_rate_left_low", run) is named


def test_a_loss_around_zero_that_jumped_once_is_not_a_rate_that_is_too_high():
    for end, named in ((0.1, False), (0.4, True)):  # BACK, over the first loss
        losses = np.r_[1.0, 4.0, np.full(198, end)]
        run = run_of(loss=losses, update_ratio=np.full((200, 3), 0.6), facts={"constant_loss": -0.1})
        assert seen("learning_rate_too_high", run) is named


def test_a_learning_rate_that_decays_at_every_batch_for_a_loss_of_any_unit():
    for left, named in ((0.48, True), (0.46, False)):  # LEFT
        run = run_of(probe_loss=np.linspace(1, left, 5), loss=np.full(200, 0.1), lr=0.1 * 0.9 ** np.arange(200))
        assert seen("scheduler_stepped_per_batch", run) is named


def test_saturation_without_an_accuracy():
    for left, named in ((0.48, True), (0.46, False)):  # LEFT
        run = run_of(probe_loss=np.linspace(1, left, 5), activation_saturated=np.full((200, 4), 0.9))
        assert seen("saturated_units", run) is named


def test_a_loop_that_clips_values():
    for gradient, named in ((0.11, True), (0.09, False)):  # LARGER, for a threshold of 1e-5
        run = examined(left=0.9, gradient=gradient)
        run.traces.update(grad_max=np.full((200, 3), 1e-5), grad_min=np.full((200, 3), -1e-5))
        assert seen("value_clipping_too_tight", run) is named
