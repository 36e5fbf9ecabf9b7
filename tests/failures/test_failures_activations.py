"""Units that die or saturate, several processes, and bugs of the loop: a control on either side of each threshold."""

import dataclasses
import importlib
import math
import warnings

import numpy as np
import pytest
from helpers import hand_made

from labkit.diagnosis.diagnose import diagnose, evidence_of
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run

ABOVE, BELOW = 1.01, 0.99
MODES = (
    "dead_relu_by_learning_rate",
    "partly_dead_layer",
    "dead_branch",
    "saturated_units",
    "attention_entropy_collapse",
    "sampler_without_set_epoch",
    "sampler_missing",
    "resumed_without_state",
    "metric_broadcast",
    "validation_with_gradients",
)


def constants(name: str):
    """The module of a mode, for its thresholds."""
    return importlib.import_module(f"labkit.failures.{FAILURES[name].topic}.{name}")


def seen(name: str, run: Run) -> bool:
    return evidence_of(FAILURES[name], run) is not None


@pytest.mark.parametrize("name", MODES)
def test_a_healthy_run_by_hand_is_left_alone(name):
    assert not seen(name, hand_made())


@pytest.mark.parametrize("name", MODES)
@pytest.mark.filterwarnings("error")
def test_a_run_of_one_step_full_of_nan_can_be_asked(name):
    nan = {"loss", "update_ratio", "grad_norm", "val_loss", "val_accuracy", "probe_loss", "dead"}
    run = hand_made(steps=1, **{each: np.full_like(hand_made(steps=1)[each], math.nan) for each in nan})
    run = with_traces(
        run,
        activation_saturated=np.full((1, 4), math.nan),
        attention_entropy=np.full((5, 2), math.nan),
        val_with_gradients=np.zeros(5),
    )
    assert not seen(name, run)


def with_traces(run: Run, **traces) -> Run:
    return dataclasses.replace(run, traces=run.traces | traces, heads=("a.0", "a.1"))


# --- dead_relu_by_learning_rate -------------------------------------------------------------------

KILLED = constants("dead_relu_by_learning_rate")


def killed(start: float = 0.0, end: float = 1.0, ratio: float = 0.07, left: float = 1.0) -> Run:
    """A layer with this dead share at both ends, steps of this size, and this share of the first loss at the end."""
    dead = np.full((5, 4), 0.05)
    dead[:, 2] = [start, start, min(start, 0.4), end, end]
    return hand_made(dead=dead, update_ratio=ratio, probe_loss=np.array([2.3, 1.0, 0.5, 2.0, 2.3 * left]))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (killed(end=KILLED.DEAD * ABOVE), True),
        (killed(end=KILLED.DEAD * BELOW), False),
        (killed(start=KILLED.ALIVE * BELOW), True),
        (killed(start=KILLED.ALIVE * ABOVE), False),
        (killed(ratio=KILLED.VIOLENT * ABOVE), True),
        (killed(ratio=KILLED.VIOLENT * BELOW), False),
        (killed(left=KILLED.LOST * ABOVE), True),
        (killed(left=KILLED.LOST * BELOW), False),
        (killed(end=0.39, ratio=0.03), False),  # healthy Adam at 1e-2
    ],
)
def test_death_by_learning_rate_needs_life_before_it_and_long_steps(run, expected):
    assert seen("dead_relu_by_learning_rate", run) == expected


def test_death_by_learning_rate_is_named_before_the_death_itself_and_says_when():
    found = diagnose(killed())
    assert [each.name for each in found] == ["dead_relu_by_learning_rate", "dead_relu"]
    assert (found[0].onset, found[0].place) == (30, "relu2")


# --- partly_dead_layer ----------------------------------------------------------------------------

PARTLY = constants("partly_dead_layer")


def partly(share: float = 0.9, left: float = 0.1, first: float | None = None) -> Run:
    dead = np.full((5, 4), 0.02)
    dead[:, 1] = share
    dead[0, 1] = share if first is None else first
    return hand_made(dead=dead, probe_loss=np.linspace(2.3, 2.3 * left, 5))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (partly(share=PARTLY.DEAD * ABOVE), True),
        (partly(share=PARTLY.DEAD * BELOW), False),
        (partly(share=PARTLY.ALL), False),
        (partly(share=PARTLY.ALL * BELOW), True),
        (partly(left=PARTLY.LEARNED * BELOW), True),
        (partly(left=PARTLY.LEARNED * ABOVE), False),
        (partly(first=0.0), False),  # it died later: another story
    ],
)
def test_a_partly_dead_layer_is_dead_from_the_start_while_the_net_learns(run, expected):
    assert seen("partly_dead_layer", run) == expected


# --- dead_branch ----------------------------------------------------------------------------------

BRANCH = constants("dead_branch")


def branch(gradient: float = 0.0, dead: float = 1.0, left: float = 0.1, **facts) -> Run:
    norms, shares = np.ones((40, 3)), np.full((5, 4), 0.05)
    norms[:, 1] = 0.0
    norms[7, 1] = gradient
    shares[:, 2] = dead
    return hand_made(grad_norm=norms, dead=shares, probe_loss=np.linspace(2.3, 2.3 * left, 5), facts=facts)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (branch(), True),
        (branch(gradient=1e-30), False),
        (branch(dead=0.99), False),
        (branch(left=BRANCH.LEARNED * BELOW), True),
        (branch(left=BRANCH.LEARNED * ABOVE), False),
        (branch(without_gradient=["layer2.weight", "layer2.bias"]), False),  # frozen, which is no death
        (branch(without_gradient=["layer1.weight"]), True),
    ],
)
def test_a_dead_branch_has_no_gradient_at_any_step_while_the_net_learns(run, expected):
    assert seen("dead_branch", run) == expected


# --- saturated_units ------------------------------------------------------------------------------

SATURATED = constants("saturated_units")


def saturated(first: float = 0.95, later: float = 0.95, accuracy: float = 0.7) -> Run:
    shares = np.full((40, 4), math.nan)
    shares[:, 1] = later
    shares[0, 1] = first
    return with_traces(hand_made(val_accuracy=np.linspace(0.1, accuracy, 5)), activation_saturated=shares)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (saturated(first=SATURATED.SATURATED * ABOVE), True),
        (saturated(first=SATURATED.SATURATED * BELOW), False),
        (saturated(later=SATURATED.SATURATED * ABOVE), True),
        (saturated(later=SATURATED.SATURATED * BELOW), False),
        (saturated(accuracy=(1 - SATURATED.MISSING) * BELOW), True),
        (saturated(accuracy=(1 - SATURATED.MISSING) * ABOVE), False),
        (saturated(first=0.14, later=0.69), False),  # a healthy tanh net with momentum
    ],
)
def test_saturation_shows_at_the_first_step_lasts_and_costs_accuracy(run, expected):
    assert seen("saturated_units", run) == expected


# --- attention_entropy_collapse -------------------------------------------------------------------

COLLAPSE = constants("attention_entropy_collapse")


def collapse(first: float = 0.1, highest: float = 0.1, left: float = 1.2) -> Run:
    entropy = np.full((5, 2), 0.05)
    entropy[0], entropy[2] = first, highest
    return with_traces(hand_made(probe_loss=np.linspace(2.3, left, 5)), attention_entropy=entropy)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (collapse(first=COLLAPSE.COLLAPSED * BELOW), True),
        (collapse(first=COLLAPSE.COLLAPSED * ABOVE), False),
        (collapse(highest=COLLAPSE.STAYS * BELOW), True),
        (collapse(highest=COLLAPSE.STAYS * ABOVE), False),
        (collapse(left=COLLAPSE.LEFT * ABOVE), True),
        (collapse(left=COLLAPSE.LEFT * BELOW), False),
        (collapse(first=2.7), False),  # it collapsed in training: the learning rate's work
    ],
)
def test_attention_that_is_shut_from_the_start_and_stays_so(run, expected):
    assert seen("attention_entropy_collapse", run) == expected


# --- distributed ----------------------------------------------------------------------------------

REPEATED, SHARED = constants("sampler_without_set_epoch"), constants("sampler_missing")


def together(**facts) -> Run:
    return hand_made(facts={"processes": 2, "samples": 1000, "batch_length": 50} | facts)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (together(order_repeats=REPEATED.REPEATS * ABOVE), True),
        (together(order_repeats=REPEATED.REPEATS * BELOW), False),
        (together(order_repeats=1.0, processes=1), False),
        (together(), False),
    ],
)
def test_an_order_that_repeats_in_several_processes(run, expected):
    assert seen("sampler_without_set_epoch", run) == expected


def test_the_order_repeats_from_the_second_epoch_on():
    (found,) = diagnose(together(order_repeats=1.0))
    assert (found.name, found.onset) == ("sampler_without_set_epoch", 10)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (together(rank_overlap=SHARED.OVERLAP * ABOVE), True),
        (together(rank_overlap=SHARED.OVERLAP * BELOW), False),
        (together(rank_overlap=1.0, processes=1), False),
    ],
)
def test_processes_that_see_the_same_samples(run, expected):
    assert seen("sampler_missing", run) == expected


# --- resumed_without_state ------------------------------------------------------------------------

RESUMED = constants("resumed_without_state")


def resumed(low: float = 0.1, back: float = 1.0, worse: float = 2.0) -> Run:
    """A rate that falls to `low` of its peak and returns to `back`; a loss that ends at `worse` times that before."""
    rate = np.full(200, 0.3)
    rate[100:150], rate[150:] = 0.3 * low, 0.3 * back
    losses = np.full(200, 0.2)
    losses[100:] = 0.2 * worse
    return hand_made(steps=200, lr=rate, loss=losses)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (resumed(low=RESUMED.LOW * BELOW), True),
        (resumed(low=RESUMED.LOW * ABOVE), False),
        (resumed(back=RESUMED.HIGH * ABOVE), True),
        (resumed(back=RESUMED.HIGH * BELOW), False),
        (resumed(worse=RESUMED.WORSE * ABOVE), True),
        (resumed(worse=RESUMED.WORSE * BELOW), False),
        (resumed(worse=math.nan), False),
    ],
)
def test_a_resumed_run_has_a_rate_that_returns_and_a_loss_that_ends_worse(run, expected):
    assert seen("resumed_without_state", run) == expected


def test_without_a_step_on_either_side_nothing_is_compared(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(RESUMED, "WINDOW", -1000)
        assert not seen("resumed_without_state", resumed())


def test_a_warm_restart_that_spikes_and_recovers_does_no_harm():
    run = resumed()
    run["loss"][170:] = 0.1
    assert not seen("resumed_without_state", run)


# --- metric_broadcast -----------------------------------------------------------------------------

METRIC = constants("metric_broadcast")


def metric(accuracy: float = 0.1, loss: float = 0.3, first: float = 2.3) -> Run:
    return hand_made(val_loss=np.array([first, 1.0, 0.8, 0.75, loss]), val_accuracy=np.full(5, accuracy))


OWED = 1 - 0.3 / math.log(2)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (metric(accuracy=OWED - METRIC.SHORT * ABOVE), True),
        (metric(accuracy=OWED - METRIC.SHORT * BELOW), False),
        (metric(first=METRIC.CROSS_ENTROPY * math.log(10) * ABOVE), True),
        (metric(first=METRIC.CROSS_ENTROPY * math.log(10) * BELOW), False),  # a squared error owes nothing
        (metric(loss=0.7), False),
        (metric(loss=math.nan), False),
    ],
)
def test_an_accuracy_below_what_the_loss_owes_is_a_bug_of_the_metric(run, expected):
    assert seen("metric_broadcast", run) == expected


# --- validation_with_gradients --------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
def test_any_validation_pass_with_gradients_is_seen(share):
    run = with_traces(hand_made(), val_with_gradients=np.array([0, 0, share, share, share]))
    assert seen("validation_with_gradients", run) == (share > 0)
    if share:
        assert diagnose(run)[0].onset == run["val_step"][2]
