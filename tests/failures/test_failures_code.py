"""Bugs in the code of the loop: for each threshold a control on either side, most on runs written by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import LAYERS, hand_made, trained
from torch import nn

import labkit
from labkit.diagnosis.diagnose import evidence_of
from labkit.diagnosis.watch import watch
from labkit.failures.catalogue import FAILURES

PARAMETERS = tuple(f"{layer}.{kind}" for layer in LAYERS for kind in ("weight", "bias"))
FLOOR = math.log(math.e + 9) - 1  # the least loss that is left when a softmax stands before cross entropy
NO_GRAD = "element 0 of tensors does not require grad and does not have a grad_fn"


def run_with(facts: dict | None = None, **traces):
    """A hand-made run that has named parameters."""
    return dataclasses.replace(hand_made(facts=facts, **traces), parameters=PARAMETERS)


def seen(name: str, run):
    with np.errstate(all="raise"):
        return evidence_of(FAILURES[name], run)


# --- the way from the loss to the weights ---------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "named"),
    [
        ("RuntimeError", NO_GRAD, True),
        ("RuntimeError", "a leaf Variable that requires grad is being used in an in-place operation.", False),
        ("ValueError", NO_GRAD, False),
    ],
)
def test_a_detached_loss_is_read_off_the_error(kind, message, named):
    run = run_with({"error": {"kind": kind, "message": message, "step": 3}})
    assert bool(seen("detached_loss", run)) is named
    assert not named or seen("detached_loss", run).onset == 3
    assert seen("detached_loss", run_with()) is None


def test_a_silently_detached_loss_leaves_every_parameter_without_gradient_and_unmoved():
    nothing = {"grad_norm_total": 0, "update_norm": 0}
    assert seen("silently_detached_loss", run_with({"without_gradient": list(PARAMETERS)}, **nothing))
    some = {"without_gradient": list(PARAMETERS[1:])}
    assert seen("silently_detached_loss", run_with(some, **nothing)) is None
    everything = {"without_gradient": list(PARAMETERS)}
    assert seen("silently_detached_loss", run_with(everything, grad_norm_total=0)) is None  # they moved
    assert seen("silently_detached_loss", run_with(everything, update_norm=0)) is None  # and later had gradients
    assert seen("silently_detached_loss", hand_made(facts=everything, **nothing)) is None  # nothing known


@pytest.mark.parametrize(("lr", "named"), [(0.1, True), (1e-5, True), (3e-6, False)])
def test_a_missing_step_is_seen_where_the_update_would_have_been_worthwhile(lr, named):
    """Gradients of 1 on weights of 5: a rate of 5e-6 would move them by a millionth."""
    assert bool(seen("step_missing", run_with(update_norm=0, lr=lr))) is named


def test_a_step_that_moves_anything_or_was_skipped_is_not_missing():
    once = np.zeros((40, 3))
    once[17, 1] = 1e-9
    assert seen("step_missing", run_with(update_norm=once)) is None
    assert seen("step_missing", run_with(update_norm=0, grad_norm=np.inf)) is None
    assert seen("step_missing", run_with(update_norm=0, grad_norm=0)) is None


@pytest.mark.parametrize(("end", "named"), [(0.95, True), (0.89, False)])  # LEFT: 0.4 of 2.3 is 0.92
def test_frozen_layers_are_a_failure_while_the_loss_is_high(end, named):
    losses = np.linspace(2.3, end, 5)
    frozen = {"without_gradient": ["layer1.weight", "layer1.bias"], "matrices": ["layer1", "layer2"]}
    evidence = seen("frozen_layers", run_with(frozen, probe_loss=losses))
    assert bool(evidence) is named
    assert not named or (evidence.place == "layer1.weight" and "2 of 6" in evidence.seen)
    assert seen("frozen_layers", run_with({"without_gradient": []}, probe_loss=losses)) is None
    assert seen("frozen_layers", run_with({"without_gradient": list(PARAMETERS)}, probe_loss=losses)) is None


@pytest.mark.parametrize(("left", "named"), [(0.16, True), (0.14, False)])  # SUFFICE
def test_layers_are_frozen_without_harm_where_the_net_explains_the_targets_all_the_same(left, named):
    """Of what a constant prediction leaves, though the loss of the probe began low and has not fallen far."""
    frozen = {"without_gradient": ["layer1.weight", "layer1.bias"], "matrices": ["layer1", "layer2"]}
    run = run_with(frozen | {"constant_loss": 1.0}, probe_loss=np.linspace(2 * left, left, 5))
    assert bool(seen("frozen_layers", run)) is named


@pytest.mark.parametrize(("end", "named"), [(0.5, True), (0.42, False)])
def test_unregistered_layers_are_a_failure_while_the_loss_is_high(end, named):
    losses = np.linspace(2.3, end, 5)
    assert bool(seen("unregistered_layers", run_with({"unregistered": [[16], [16, 784]]}, probe_loss=losses))) is named
    assert seen("unregistered_layers", run_with({"unregistered": []}, probe_loss=losses)) is None


def test_a_stale_optimizer_does_not_hold_a_layer_that_gets_gradients():
    still = np.full((40, 3), 0.05)
    still[:, 2] = 0
    head = {"not_in_optimizer": ["layer3.weight", "layer3.bias"]}
    assert seen("stale_optimizer", run_with(head, update_norm=still)).place == "layer3"
    assert seen("stale_optimizer", run_with(head)) is None  # something else moves it
    frozen = head | {"without_gradient": head["not_in_optimizer"]}
    assert seen("stale_optimizer", run_with(frozen, update_norm=still)) is None
    assert seen("stale_optimizer", run_with({"not_in_optimizer": []}, update_norm=still)) is None


# --- gradients and losses of the wrong size -------------------------------------------------------


def piled_up(grown: float = 10.0, change: float = 0.1, end: float = 2.0, facts: dict | None = None):
    """Norms that grow to so many times the first, and gradient means that swing by such a share at each step."""
    norms = np.concatenate([np.linspace(1, grown, 30), np.full(10, grown)])
    swing = np.where(np.arange(40)[:, None] % 2, 1 + change / 2, 1 - change / 2)
    means = np.repeat(swing, len(PARAMETERS), axis=1)
    known = {"batch_length": 128, "samples": 10_000} | (facts or {})
    losses = np.linspace(2.3, end, 5)
    return run_with(known, grad_norm_total=norms, grad_mean=means, probe_loss=losses)


def test_gradients_that_pile_up_grow_and_hardly_change():
    evidence = seen("zero_grad_missing", piled_up())
    assert evidence and 20 < evidence.onset < 30
    assert seen("zero_grad_missing", piled_up(grown=6.5)) is None
    assert seen("zero_grad_missing", piled_up(change=0.25))
    assert seen("zero_grad_missing", piled_up(change=0.4)) is None
    assert seen("zero_grad_missing", piled_up(end=0.5))
    assert seen("zero_grad_missing", piled_up(end=0.42)) is None


def test_gradients_of_the_whole_set_are_alike_by_rights():
    assert seen("zero_grad_missing", piled_up(facts={"batch_length": 1000, "samples": 1000})) is None
    assert seen("zero_grad_missing", piled_up(facts={"batch_length": 999, "samples": 1000}))


def probabilities(mean: float = 0.1, low: float = 0.0, high: float = 1.0, losses=(2.3, 1.6)):
    means = np.full((40, 4), 0.5)
    means[:, -1] = mean
    ranges = np.tile([low, high], (5, 4, 1))
    return run_with(activation_mean=means, histogram_range=ranges, loss=np.linspace(*losses, 40))


def test_a_softmax_too_many_shows_in_outputs_that_add_up_to_one():
    assert seen("softmax_before_cross_entropy", probabilities())
    assert seen("softmax_before_cross_entropy", probabilities(mean=0.1 + 5e-7))
    assert seen("softmax_before_cross_entropy", probabilities(mean=0.1 + 2e-6)) is None
    assert seen("softmax_before_cross_entropy", probabilities(low=-1e-3)) is None
    assert seen("softmax_before_cross_entropy", probabilities(high=1.001)) is None


def test_a_loss_that_is_made_for_probabilities_goes_beyond_what_two_softmaxes_allow():
    assert seen("softmax_before_cross_entropy", probabilities(losses=(2.3, FLOOR + 1e-6)))
    assert seen("softmax_before_cross_entropy", probabilities(losses=(2.3, FLOOR - 1e-3))) is None
    assert seen("softmax_before_cross_entropy", probabilities(losses=(FLOOR + 1 - 1e-6, 2)))
    assert seen("softmax_before_cross_entropy", probabilities(losses=(FLOOR + 1 + 1e-3, 2))) is None


def summed(times: float = 12.0, peak: float = 3.5):
    losses = np.full(40, 300.0)
    losses[5] *= peak
    return run_with(loss=losses, probe_loss=np.full(5, 2.3 * times), sample_loss_mean=np.full(5, 2.3))


def test_a_sum_is_as_many_times_a_mean_as_there_are_images_and_harms_where_the_loss_rises():
    assert seen("summed_loss", summed())
    assert seen("summed_loss", summed(times=8)) is None
    assert seen("summed_loss", summed(peak=2.5)) is None
    assert seen("summed_loss", summed(peak=math.nan))


def test_one_odd_evaluation_is_not_a_sum():
    run = summed(times=100)
    run["probe_loss"][2] = 2.3
    assert seen("summed_loss", run) is None


# --- outputs and losses that do not fit -----------------------------------------------------------


def last_column(value: float, others: float = 0.5) -> np.ndarray:
    means = np.full((40, 4), others)
    means[:, -1] = value
    return means


def bounded(low=0.0, high=1.0, ends=(0.5, 0.06), losses=(2.3, 1.6), classes=10, width=None, twin=False, first=0.3):
    """Outputs in this range, with such shares in the lowest and highest bin; at first the range is narrow."""
    shares = np.full(32, (1 - sum(ends)) / 30)
    shares[[0, -1]] = ends
    counts = np.zeros((5, 4, 32))
    counts[:, -1] = np.round(shares * 64 * (width or classes))
    counts[:, -1, 15] += 64 * (width or classes) - counts[:, -1].sum(axis=1)
    ranges = np.zeros((5, 4, 2))
    ranges[:, -1] = low, high
    ranges[0, -1, 1] = min(high, low + first)
    means = last_column(0.4)
    if twin:
        ranges[:, -2], means[:, -2] = ranges[:, -1], 0.4
    facts = {"classes": classes}
    traces = {"histogram": counts, "histogram_range": ranges, "activation_mean": means}
    traces["probe_loss"] = np.linspace(*losses, 5)
    return run_with(facts, loss=np.linspace(*losses, 40), **traces)


def test_a_relu_on_the_outputs_leaves_many_zeros_and_nothing_below():
    def relu(**changes):
        return seen(
            "activation_on_outputs", bounded(**({"high": 12, "ends": (0.5, 0.01), "losses": (2.3, 0.7)} | changes))
        )

    assert relu().place == "outputs"
    assert relu(ends=(0.12, 0.01))
    assert relu(ends=(0.08, 0.01)) is None
    assert relu(low=-1e-6) is None
    assert relu(losses=(0.15, 0.02)) is None  # squared error
    assert relu(losses=(2.45, 0.7))
    assert relu(losses=(2.6, 0.7)) is None  # SLACK: outputs of 0 to 0.24 give ln(1 + 9 exp(0.24)) = 2.52 at most


def test_a_sigmoid_on_the_outputs_gathers_them_at_both_ends():
    name = "activation_on_outputs"
    assert seen(name, bounded())
    assert seen(name, bounded(low=-1))
    assert seen(name, bounded(low=-1.01)) is None
    assert seen(name, bounded(high=1.01, low=0.001)) is None
    assert seen(name, bounded(low=0.001, ends=(0.07, 0.06)))
    assert seen(name, bounded(low=0.001, ends=(0.05, 0.06))) is None  # ENDS: 0.12 together
    assert seen(name, bounded(low=0.001, ends=(0.5, 0.02))) is None  # TOP: one peak, a softmax over the batch
    assert seen(name, bounded(low=0.001, high=0.92))
    assert seen(name, bounded(low=0.001, high=0.88)) is None  # WIDE: 0.9
    assert seen(name, bounded(low=0.001, losses=(2.3, 1.1)))
    assert seen(name, bounded(low=0.001, losses=(2.3, 0.95))) is None  # FLOOR: a loss for logits stays above 1.46


def test_outputs_that_are_those_of_the_last_activation():
    quiet = {"low": 0.2, "high": 0.6, "ends": (0.01, 0.01), "losses": (2.3, 2.1)}
    assert seen("activation_on_outputs", bounded(**quiet)) is None
    run = bounded(**quiet, twin=True)
    assert seen("activation_on_outputs", run)
    run["activation_mean"][7, -2] *= 1 + 5e-6
    assert seen("activation_on_outputs", run)
    run["activation_mean"][7, -2] *= 1 + 2e-5
    assert seen("activation_on_outputs", run) is None


@pytest.mark.parametrize(("classes", "width", "named"), [(2, 1, True), (2, 2, True), (5, 5, True), (5, 10, False)])
def test_an_activation_on_the_outputs_needs_one_output_per_class(classes, width, named):
    """Outputs of other numbers are embeddings; the first loss is at chance level."""
    chance = math.log(classes)
    run = bounded(high=12, ends=(0.5, 0.01), losses=(chance, 0.3 * chance), classes=classes, width=width)
    assert bool(seen("activation_on_outputs", run)) is named


@pytest.mark.parametrize(("end", "named"), [(0.35, True), (0.27, False)])
def test_one_probability_is_healthy_where_the_loss_is_as_low_as_its_entropy(end, named):
    """With 4 % of the outputs between the ends, their entropy is about 0.1, and a loss of 0.3 is the limit."""
    run = bounded(ends=(0.48, 0.48), losses=(0.7, end), classes=2, width=1)
    run["loss"][-10:] = end
    assert bool(seen("activation_on_outputs", run)) is named


def test_one_output_that_a_relu_keeps_at_zero():
    run = bounded(ends=(0.5, 0.01), losses=(0.7, 0.69), classes=2, width=1)
    run["histogram_range"][-1, -1] = 0
    assert seen("activation_on_outputs", run)
    run["histogram_range"][:, -1] = 0  # nothing tells it from a net with dead units
    assert seen("activation_on_outputs", run) is None


def test_outputs_of_a_softmax_are_another_failure():
    run = bounded()
    run["activation_mean"][:, -1] = 0.1
    assert seen("activation_on_outputs", run) is None


def over_batch(distance: float = 5.0, alone: float = 2.302585, variance: float = 0.0, together=2.29, width: int = 10):
    counts = np.zeros((5, 4, 32))
    counts[:, -1, 0] = 64 * width
    traces = {"batch_softmax_distance": distance, "sample_loss_mean": alone, "sample_loss_variance": variance}
    traces = {name: np.full(5, value) for name, value in (traces | {"probe_loss": together}).items()}
    return run_with(histogram=counts, **traces)


def test_a_softmax_over_the_batch_sums_to_one_over_it_at_every_evaluation():
    assert seen("softmax_over_batch", over_batch(5e-4, variance=1.0)).place == "outputs"
    assert seen("softmax_over_batch", over_batch(2e-3, variance=1.0)) is None
    once = over_batch(1e-6, variance=1.0)
    once["batch_softmax_distance"][2] = 0.6
    assert seen("softmax_over_batch", once) is None


def test_a_softmax_over_the_batch_in_the_loss_gives_each_sample_alone_the_same_loss():
    assert seen("softmax_over_batch", over_batch()).place == "loss"
    assert seen("softmax_over_batch", over_batch(alone=0.0, together=4.8)).place == "loss"  # nll_loss
    assert seen("softmax_over_batch", over_batch(alone=2.30257)) is None
    assert seen("softmax_over_batch", over_batch(variance=1e-9)) is None
    assert seen("softmax_over_batch", over_batch(together=2.3019)) is None  # OTHER: outputs that are all alike
    assert seen("softmax_over_batch", over_batch(width=16)) is None  # a loss that compares samples by design


def collapsed(first: float = 1.0, late: float = 1.0, mean: float = 0.0, classes: int = 10, spread: float = 0.02):
    """Outputs of 0 ± 0.2 at first, whose absolute error is 0.8 * 0.2 * 0.9 + 0.1 for ten classes."""
    expected = (1 - 1 / classes) * 0.2 * math.sqrt(2 / math.pi) + 1 / classes
    losses = np.full(40, late / classes)
    losses[:5] = first * expected
    means = last_column(mean / classes)
    means[:10, -1] = 0
    deviations = last_column(spread)
    deviations[:10, -1] = 0.2
    return run_with({"classes": classes}, loss=losses, activation_mean=means, activation_std=deviations)


@pytest.mark.parametrize("classes", [3, 10, 50])
def test_absolute_error_collapses_to_zero_for_every_class(classes):
    name = "loss_does_not_fit"
    assert seen(name, collapsed(classes=classes)).place == "loss"
    assert seen(name, collapsed(classes=classes, first=0.82)) and seen(name, collapsed(classes=classes, first=1.18))
    assert seen(name, collapsed(classes=classes, first=0.78)) is None
    assert seen(name, collapsed(classes=classes, first=1.22)) is None
    assert seen(name, collapsed(classes=classes, late=0.65)) and seen(name, collapsed(classes=classes, late=1.35))
    assert seen(name, collapsed(classes=classes, late=0.55)) is None
    assert seen(name, collapsed(classes=classes, late=1.45)) is None
    assert seen(name, collapsed(classes=classes, mean=0.45))
    assert seen(name, collapsed(classes=classes, mean=0.55)) is None


@pytest.mark.parametrize(("odd", "named"), [(2, True), (3, False)])
def test_most_of_the_first_losses_are_absolute_errors(odd, named):
    """EARLY: five losses, of which the median counts."""
    run = collapsed()
    run["loss"][:odd] *= 2
    assert bool(seen("loss_does_not_fit", run)) is named


def test_outputs_far_larger_than_the_loss_are_not_those_of_an_absolute_error():
    """LEAST: outputs of 0 ± 0.55 have an absolute error of 0.5, five times this loss."""
    assert seen("loss_does_not_fit", collapsed(spread=0.5))
    assert seen("loss_does_not_fit", collapsed(spread=0.6)) is None


def test_absolute_error_of_two_classes_does_not_collapse():
    assert seen("loss_does_not_fit", collapsed(classes=2)) is None


# --- train mode and eval mode ---------------------------------------------------------------------

NORMED = {"batch_norms": ["norm1"], "dropouts": []}
DROPPED = {"batch_norms": [], "dropouts": ["dropout1"]}


def validated(facts: dict, mode: float, val_loss: float, **traces):
    """Trained to a loss of 0.2, and validated in train mode for such a share of the passes."""
    losses = np.linspace(2.3, val_loss, 5)
    return run_with(facts, loss=0.2, val_train_mode=np.full(5, mode), val_loss=losses, **traces)


@pytest.mark.parametrize(
    ("mode", "loss", "named"), [(1, 0.9, True), (1, 0.7, False), (0.5, 0.9, False), (0, 0.9, False)]
)
def test_batch_norm_in_train_mode_at_validation(mode, loss, named):
    name = "batch_norm_in_train_mode_at_validation"
    assert bool(seen(name, validated(NORMED, mode, loss))) is named
    assert seen(name, validated(DROPPED, mode, loss)) is None


@pytest.mark.parametrize(("mode", "loss", "named"), [(1, 0.39, True), (1, 0.31, False), (0, 0.39, False)])
def test_dropout_on_at_validation(mode, loss, named):
    """The probe ends at 0.2."""
    assert bool(seen("dropout_at_validation", validated(DROPPED, mode, loss))) is named
    assert seen("dropout_at_validation", validated(NORMED, mode, loss)) is None
    assert seen("dropout_at_validation", validated(NORMED | {"dropouts": ["d"]}, mode, loss)) is None


@pytest.mark.parametrize(
    ("mode", "loss", "named"), [(0.5, 0.9, True), (0.5, 0.7, False), (1, 0.9, False), (0, 0.9, False)]
)
def test_poisoned_statistics_show_on_the_training_images(mode, loss, named):
    probe = np.linspace(2.3, loss, 5)
    assert bool(seen("poisoned_batch_norm", validated(NORMED, mode, 0.3, probe_loss=probe))) is named
    assert seen("poisoned_batch_norm", validated(DROPPED, mode, 0.3, probe_loss=probe)) is None


UNMOVED = NORMED | {"batch_norms_unmoved": ["norm1"]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"evaluated": 0.7}, True),  # WASTED: the loss fell by 2.1, of which a fifth is 0.42
        ({"evaluated": 0.55}, False),
        ({"in_train_mode": 10}, True),  # STEPS
        ({"in_train_mode": 9}, False),
        ({"facts": NORMED | {"batch_norms_unmoved": []}}, False),
        ({"trained": 3.0, "evaluated": 9.0}, False),  # nothing was learned that could be wasted
        ({"evaluated": math.nan}, True),
        ({"evaluated": math.inf}, True),
    ],
)
def test_frozen_statistics_waste_what_was_learned(changes, named):
    evidence = seen("batch_norm_statistics_frozen", frozen_run(**changes))
    assert bool(evidence) is named
    assert not named or evidence.place == "norm1"


def frozen_run(facts=UNMOVED, evaluated=1.5, trained=0.2, in_train_mode=40):
    losses, modes = np.r_[2.3, np.full(39, trained)], np.arange(40) < in_train_mode
    return run_with(facts, loss=losses, train_mode=modes, probe_loss=np.r_[2.3, np.full(4, evaluated)])


@pytest.mark.parametrize(("mode", "loss", "named"), [(0, 1.5, True), (0, 0.3, False), (1, 1.5, False)])
def test_without_a_probe_a_validation_in_eval_mode_shows_frozen_statistics(mode, loss, named):
    run = frozen_run()
    traces = {name: values for name, values in run.traces.items() if not name.startswith("probe")}
    traces |= {"val_loss": np.linspace(2.3, loss, 5), "val_train_mode": np.full(5, float(mode))}
    assert bool(seen("batch_norm_statistics_frozen", dataclasses.replace(run, traces=traces))) is named


@pytest.mark.parametrize(("momentum", "named"), [(0.0, True), (0.1, False)])
def test_frozen_statistics_are_found_in_a_foreign_regression(momentum, named):
    torch.manual_seed(0)
    x = 3 + 2 * torch.randn(256, 8)
    y = x.sum(1, keepdim=True) / 5
    norm = nn.BatchNorm1d(32, momentum=momentum)
    net = nn.Sequential(nn.Linear(8, 32), norm, nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    with labkit.watch(net, optimizer, probe=(x, y), loss_fn=nn.functional.mse_loss, strict=True) as record:
        for step in range(200):
            batch = slice(step % 4 * 64, step % 4 * 64 + 64)
            loss = nn.functional.mse_loss(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            record.step(loss, (x[batch], y[batch]))
            if step % 20 == 19:
                record.validation()
    assert ("batch_norm_statistics_frozen" in [each.name for each in record.diagnose()]) is named


@pytest.mark.parametrize(("peak", "named"), [(3.5, True), (2.5, False), (math.inf, True), (math.nan, True)])
def test_eval_mode_in_training_harms_where_the_loss_rises(peak, named):
    losses, modes = np.full(40, 2.0), np.ones(40)
    losses[30], modes[10:] = 2.0 * peak, 0
    evidence = seen("eval_mode_in_training", run_with(NORMED, loss=losses, train_mode=modes))
    assert bool(evidence) is named
    assert not named or evidence.onset == 10
    assert seen("eval_mode_in_training", run_with(NORMED, loss=losses, train_mode=np.ones(40))) is None
    assert seen("eval_mode_in_training", run_with(DROPPED, loss=losses, train_mode=modes)) is None


@pytest.mark.parametrize(
    ("length", "share", "named"), [(2, 0.55, True), (2, 0.45, False), (4, 0.55, True), (5, 0.55, False)]
)
def test_batch_norm_on_tiny_batches(length, share, named):
    losses = share * math.log(10)
    assert bool(seen("tiny_batch_norm", run_with(NORMED | {"batch_length": length}, loss=losses))) is named
    assert seen("tiny_batch_norm", run_with(DROPPED | {"batch_length": length}, loss=losses)) is None


# --- what the layers compute, and which way the steps go ------------------------------------------


def layered(bent=3e-7, left: float = 0.2, layers: int = 3, hidden=math.nan, facts: dict | None = None):
    """A net of so many weight matrices, its distance from an affine function, and the loss that is left of 2.3."""
    deviations = np.ones((40, 4))
    deviations[:, 1:3] = hidden
    bent = np.broadcast_to(np.asarray(bent, dtype=float), 5)
    known = {"matrices": [f"layer{number}" for number in range(layers)]} | (facts or {})
    losses = np.linspace(2.3, 2.3 * left, 5)
    return run_with(known, nonlinearity=bent, activation_std=deviations, probe_loss=losses)


def test_layers_without_an_activation_are_one_affine_function():
    evidence = seen("missing_nonlinearity", layered())
    assert evidence and "3 layers" in evidence.seen and evidence.onset == 0
    assert seen("missing_nonlinearity", layered(bent=0.9e-4))
    assert seen("missing_nonlinearity", layered(bent=1.1e-4)) is None
    assert seen("missing_nonlinearity", layered(bent=[0, 1e-7, 0.1, 1e-7, 0])) is None  # at every evaluation
    assert seen("missing_nonlinearity", layered(bent=[math.nan, 1e-7, 1e-7, 1e-7, 1e-7]))
    assert seen("missing_nonlinearity", layered(bent=math.nan)) is None


def test_a_single_layer_is_linear_on_purpose():
    assert seen("missing_nonlinearity", layered(layers=2))
    assert seen("missing_nonlinearity", layered(layers=1)) is None


def test_a_linear_net_that_fits_its_data_needs_no_activation():
    assert seen("missing_nonlinearity", layered(left=0.031))
    assert seen("missing_nonlinearity", layered(left=0.029)) is None


@pytest.mark.parametrize("facts", [{"classes": 2}, {"classes": 1}, {"classes": 1000}])
def test_linear_layers_are_seen_whatever_the_task(facts):
    assert seen("missing_nonlinearity", layered(facts=facts))


def test_an_activation_counts_where_it_works_between_the_layers():
    """In its linear range, or switched off by tiny weights, it is another failure; after the last layer it is none."""
    assert seen("missing_nonlinearity", layered(hidden=0.5)) is None
    assert seen("missing_nonlinearity", layered(hidden=1.0))  # the deviation of the outputs: they are the same numbers


def climbing(rise: float = 4.0, steps: int = 8, update: float = 0.03, early: float = 1.05, fell: float = 1.0, sign=1):
    """A loss that is at `early` times the first for the first half and reaches `rise` after so many steps."""
    losses = np.full(40, rise)
    losses[:steps] = early
    losses[0] = 1.0
    probe = np.array([1.0, fell, rise, rise, rise])
    return run_with(
        loss=sign * 0.7 * losses, update_ratio=update, probe_loss=0.7 * probe, val_step=[0, 1, steps, 20, 40]
    )


def test_a_loss_that_rises_with_gentle_steps_is_climbed():
    assert seen("gradient_ascent", climbing())
    assert seen("gradient_ascent", climbing(rise=2.1))
    assert seen("gradient_ascent", climbing(rise=1.9)) is None
    assert seen("gradient_ascent", climbing(update=0.19))
    assert seen("gradient_ascent", climbing(update=0.21)) is None  # the learning rate is too high
    assert seen("gradient_ascent", climbing(steps=2))
    assert seen("gradient_ascent", climbing(steps=1)) is None
    for far in (math.nan, math.inf):  # a loss that breaks has not climbed; one that climbed breaks in the end
        assert seen("gradient_ascent", climbing(rise=far)) is None
        broken = climbing()
        broken["loss"][20:] = far
        assert seen("gradient_ascent", broken)


def test_a_loss_that_falls_at_first_or_comes_back_is_not_climbed():
    assert seen("gradient_ascent", climbing(early=1.01))
    assert seen("gradient_ascent", climbing(early=0.99)) is None
    assert seen("gradient_ascent", climbing(fell=0.98))
    assert seen("gradient_ascent", climbing(fell=0.96)) is None
    back = climbing()
    back["loss"][30] = 0.69
    assert seen("gradient_ascent", back) is None


def test_where_the_flipped_loss_was_recorded_the_probe_or_the_accuracy_tells():
    assert seen("gradient_ascent", climbing(sign=-1))
    learning = climbing(sign=-1)  # a likelihood, or a reward: below 0 by rights
    learning["probe_loss"][:] = np.linspace(0.7, 0.2, 5)
    assert seen("gradient_ascent", learning) is None
    for accuracy, named in ((0.08, True), (0.12, False)):
        run = climbing(sign=-1)
        run["probe_loss"][:] *= -1
        run["probe_accuracy"][:] = np.linspace(0.1, accuracy, 5)
        assert bool(seen("gradient_ascent", run)) is named
    unknown = {"probe_loss", "probe_accuracy", "val_accuracy"}
    bare = climbing(sign=-1)
    bare = dataclasses.replace(bare, traces={name: each for name, each in bare.traces.items() if name not in unknown})
    assert seen("gradient_ascent", bare) is None


def watched_program(outputs: int, loss_fn, targets, activation: bool, sign: float = 1.0, probe: bool = True):
    """A plain loop on 12 inputs, as `labkit.watch` records it."""
    torch.manual_seed(0)
    x = torch.randn(512, 12)
    y = targets(x)
    middle = [nn.ReLU()] if activation else []
    model = nn.Sequential(nn.Linear(12, 32), *middle, nn.Linear(32, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with watch(model, optimizer, probe=(x[:128], y[:128]) if probe else None, loss_fn=loss_fn, strict=True) as record:
        for step in range(120):
            chosen = torch.randint(0, 512, (64,))
            optimizer.zero_grad()
            loss = loss_fn(model(x[chosen]), y[chosen])
            (sign * loss).backward()
            optimizer.step()
            record.step(loss, batch=(x[chosen], y[chosen]))
            if step % 20 == 0:
                record.validation(loss=loss.item())
    return record.run


PROGRAMS = {
    "three classes": (3, nn.functional.cross_entropy, lambda x: x[:, :3].abs().argmax(1)),
    "binary": (1, nn.functional.binary_cross_entropy_with_logits, lambda x: (x[:, :1] * x[:, 1:2] > 0).float()),
    "regression": (1, nn.functional.mse_loss, lambda x: (x[:, :1] * x[:, 1:2]).abs()),
}


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_with_other_tasks(program, probe):
    outputs, loss_fn, targets = PROGRAMS[program]
    healthy = watched_program(outputs, loss_fn, targets, activation=True, probe=probe)
    linear = watched_program(outputs, loss_fn, targets, activation=False, probe=probe)
    climbing = watched_program(outputs, loss_fn, targets, activation=True, sign=-1.0, probe=probe)
    for name, sick in (("missing_nonlinearity", linear), ("gradient_ascent", climbing)):
        for run in (healthy, linear, climbing):  # without a probe the first batch is one
            assert bool(seen(name, run)) is (run is sick), name


# --- any run may come -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, mode in FAILURES.items() if mode.topic == "code"])
def test_a_foreign_run_that_knows_little_does_no_harm(name):
    bare = dataclasses.replace(hand_made(), facts={})
    assert seen(name, bare) is None
    assert seen(name, dataclasses.replace(bare, traces={"loss": np.full(1, np.nan)})) is None


# --- the scale of the loss --------------------------------------------------------------------------


def scaled_down(factor=1e-4, left=0.99, update=4e-6, gradient=1.7e-4):
    constant = factor * math.log(10)
    facts = {"constant_loss": constant, "label_shares": [0.1] * 10}
    losses = np.linspace(1, left, 5) * constant
    run = run_with(facts, probe_loss=losses, update_ratio=update, grad_norm_total=gradient)
    return seen("loss_scaled_down", run)


def test_a_loss_is_scaled_down_when_a_constant_prediction_costs_far_less_than_the_entropy_of_the_labels():
    assert scaled_down() and scaled_down(factor=0.049) and not scaled_down(factor=0.051)
    assert scaled_down(left=0.81) and scaled_down(left=0.79) is None
    assert scaled_down(update=9e-4) and scaled_down(update=1.1e-3) is None
    assert scaled_down(gradient=1.1e-7) and scaled_down(gradient=0.9e-7) is None  # it vanishes for another reason
    assert seen("loss_scaled_down", run_with()) is None  # nothing known of the loss


def test_adam_does_not_mind_a_loss_that_is_scaled_down():
    """Trained, 60 steps: the same loss is a failure with SGD and none with Adam."""
    sick = FAILURES["loss_scaled_down"].sick.but(steps=60, samples=2000)
    assert seen("loss_scaled_down", trained(sick))
    assert seen("loss_scaled_down", trained(sick.but(optimizer="adam", lr=0.003))) is None
