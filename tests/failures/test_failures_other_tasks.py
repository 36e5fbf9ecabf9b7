"""Signatures on tasks other than ten classes of images, measured against the loss of a constant prediction.

Every threshold has a run on either side.
"""

import dataclasses

import numpy as np
import pytest
from helpers import hand_made

from labkit.diagnosis.diagnose import diagnose, evidence_of
from labkit.failures.catalogue import FAILURES
from labkit.failures.data.labels_shuffled import working

CONSTANT = 0.5  # the loss of the best constant prediction in these runs: far from ln 10


def seen(name: str, run) -> bool:
    return evidence_of(FAILURES[name], run) is not None


def run_of(steps: int = 200, facts: dict | None = None, **traces):
    """A healthy run of a regression; `traces` are shares of the loss of a constant prediction where they are losses."""
    evaluations = 5
    shares = {
        "loss": np.linspace(1.0, 0.2, steps),
        "probe_loss": np.linspace(1.0, 0.2, evaluations),
        "val_loss": np.linspace(1.0, 0.25, evaluations),
    }
    shares |= {name: np.asarray(traces.pop(name), dtype=float) for name in list(traces) if name in shares}
    found = hand_made(steps, **{name: CONSTANT * share for name, share in shares.items()}, **traces)
    facts = {name: value for name, value in found.facts.items() if name != "classes"} | {
        "constant_loss": CONSTANT,
        **(facts or {}),
    }
    kept = {name: trace for name, trace in found.traces.items() if not name.endswith("_accuracy")}
    return type(found)(kept, layers=found.layers, activations=found.activations, facts=facts)


def test_the_healthy_run_is_healthy():
    assert diagnose(run_of()) == []


# --- learning rate --------------------------------------------------------------------------------


def slow(end=0.85, ratio=3e-3, highest=1.0, **more):
    losses = np.linspace(1.0, end, 200)
    losses[1] = highest
    return run_of(loss=losses, probe_loss=np.linspace(1.0, end, 5), update_ratio=np.full((200, 3), ratio), **more)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (slow(), True),
        (slow(ratio=3.9e-3), True),  # SLOW
        (slow(ratio=4.1e-3), False),
        (slow(end=0.81), True),  # HARDLY, in the last quarter
        (slow(end=0.78), False),
        (slow(highest=1.9), True),  # ODD
        (slow(highest=2.1), False),
    ],
)
def test_a_loss_that_has_hardly_begun_to_fall(run, named):
    assert seen("learning_rate_left_low", run) is named


@pytest.mark.parametrize(("decays", "first"), [(False, "learning_rate_too_low"), (True, "scheduler_stepped_per_batch")])
def test_where_a_schedule_made_the_rate_low_the_schedule_is_named_first(decays, first):
    lr = 0.1 * (0.9 ** np.arange(200) if decays else np.ones(200))
    run = run_of(loss=1.0, probe_loss=1.0, update_ratio=np.full((200, 3), 1e-5), lr=lr)
    assert diagnose(run)[0].name == first


def ended(steps=41, left=0.8, ratio=0.02, gain=0.1, last=0.85, **facts):
    """A run that ends early; losses as shares of the loss of a constant prediction."""
    tests = {"loss": CONSTANT * left, "best_loss": CONSTANT * (left - gain)}
    losses = np.repeat([1.0, (1 + last) / 2, last], [len(part) for part in np.array_split(np.ones(steps), 3)])
    return run_of(
        steps, facts={"probe_tests": tests, **facts}, loss=losses, probe_loss=np.linspace(1, left, 5),
        update_ratio=np.full((steps, 3), ratio),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (ended(), True),
        (ended(steps=8), True),  # FEWEST
        (ended(steps=7), False),
        (ended(last=0.98), False),
        (ended(last=0.98, steps=40), True),  # A_FEW
        (ended(last=0.98, steps=40, ratio=0.1), True),  # not far: the updates of all layers together count, 0.01
        (ended(last=0.98, steps=40, left=0.31), True),  # SOME
        (ended(last=0.98, steps=40, left=0.29), False),
        (ended(last=0.98, steps=40, gain=0.0095), True),  # ANYTHING
        (ended(last=0.98, steps=40, gain=0.0085), False),
        (ended(left=0.41), True),  # LEFT
        (ended(left=0.39), False),
        (ended(ratio=0.0243), True),  # TRAVELLED: 41 steps of 0.0244 make 1
        (ended(ratio=0.0245), False),
        (ended(ratio=0.0051), True),  # BUSY
        (ended(ratio=0.0049), False),
        (ended(gain=0.011), True),  # GAIN
        (ended(gain=0.009), False),
        (ended(last=0.96), True),  # FALL
        (ended(last=0.98), False),
        (ended(stopped="on request"), False),  # somebody ended it, and knows
        (ended(probe_tests={}), False),  # a live diagnosis: the run goes on
    ],
)
def test_training_that_ends_while_the_loss_falls_steeply(run, named):
    assert seen("training_not_finished", run) is named


@pytest.mark.parametrize(("travelled", "named"), [(0.69, True), (0.71, False)])  # NOT_FAR
def test_training_that_hardly_began_has_not_gone_far(travelled, named):
    run = ended(last=0.98, steps=40)
    update = np.full(run["update_norm"].shape, travelled / 40) * run["weight_norm"]
    assert seen("training_not_finished", dataclasses.replace(run, traces=run.traces | {"update_norm": update})) is named


@pytest.mark.parametrize(("update", "named"), [(2.6e-4, True), (2.4e-4, False), (1.1e-3, True)])
def test_labels_are_to_blame_only_where_each_layer_moves(update, named):
    """EACH: 0.1 over 400 steps, or BUSY."""
    run = run_of(400, update_ratio=np.full((400, 3), update))
    assert working(run) is named


# --- dropout --------------------------------------------------------------------------------------


def dropping(rate=0.95, left=0.6, training=0.7):
    facts = {"dropouts": ["dropout1", "dropout2"], "dropout_rates": [0.1, rate]}
    losses, probe = np.linspace(1.0, training, 200), np.linspace(1.0, left, 5)
    return run_of(facts=facts, loss=losses, probe_loss=probe, train_mode=np.ones(200))


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (dropping(), True),
        (dropping(rate=0.91), True),  # NEARLY_ALL
        (dropping(rate=0.89), False),
        (dropping(left=0.26), True),  # LEFT
        (dropping(left=0.24, training=0.3), False),
        (dropping(rate=0.5, left=0.5, training=1.9), True),  # MOST: 1.5 more in training than on the probe
        (dropping(rate=0.5, left=0.3, training=2.5), False),
    ],
)
def test_a_dropout_rate_of_nearly_all(run, named):
    assert seen("too_much_dropout", run) is named


# --- inputs ---------------------------------------------------------------------------------------


def wide(deviation=20.0, first=3.2, left=0.3, kind="float32", **facts):
    sizes = np.tile([deviation, 1.0, 1.0, 1.0], (200, 1))
    losses, probe = np.linspace(first, left, 200), np.linspace(1.0, left, 5)
    facts = {"dtypes": {"inputs": [kind]}, **facts}
    return run_of(facts=facts, loss=losses, probe_loss=probe, activation_std=sizes)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (wide(), True),
        (wide(deviation=9.0), False),  # WIDE
        (wide(first=2.8), False),  # SURPRISED
        (wide(left=0.24), False),  # LEFT
        (wide(first=1.0, left=0.52), True),  # MUCH
        (wide(first=1.0, left=0.48), False),
        (wide(kind="int64"), False),
        (wide(batch_norms=["norm1"]), False),
    ],
)
def test_wide_inputs_that_slow_learning(run, named):
    assert seen("inputs_not_normalised", run) is named


# --- generalisation and labels --------------------------------------------------------------------


def fitted(left=0.03, validated=0.6):
    return run_of(probe_loss=np.linspace(1, left, 5), val_loss=np.linspace(1, validated, 5))


@pytest.mark.parametrize(
    ("run", "named"),
    [(fitted(), True), (fitted(left=0.04), True), (fitted(left=0.06), False),  # FITTED
     (fitted(validated=0.46), True), (fitted(validated=0.44), False)],  # USELESS
)  # fmt: skip
def test_samples_that_were_memorised_without_an_accuracy(run, named):
    assert seen("too_few_samples", run) is named


def uninformative(
    early=0.97, left=0.6, best=1.0, ratio=1e-2, highest=1.0, gradient=0.3, steps=200, first=1.0, last=1.1
):
    probe = np.array([highest, early, early, left, left])
    return run_of(
        steps, probe_loss=probe, val_loss=[first, best, last, last, last], loss=np.linspace(1, left, steps),
        update_ratio=np.full((steps, 3), ratio), grad_norm_total=np.full(steps, gradient),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (uninformative(), True),
        (uninformative(early=0.96, left=0.96, best=0.8, last=0.8), True),  # NEVER
        (uninformative(early=0.94, left=0.94, best=0.8, last=0.8), False),
        (uninformative(early=0.94, left=0.94, best=0.89, last=0.89), True),  # KEEPS
        (uninformative(early=0.94, left=0.94, best=0.87, last=0.87), False),
        (uninformative(early=0.91, left=0.91, best=0.95, last=0.95), True),  # NEARLY
        (uninformative(early=0.89, left=0.89, best=0.95, last=0.95), False),
        (uninformative(early=0.87, left=0.7, best=0.7, last=0.8), True),  # MEMORISED
        (uninformative(early=0.85, left=0.7, best=0.7, last=0.8), False),
        (uninformative(early=0.87, left=0.7, best=0.7, last=0.72), True),  # WORSENS
        (uninformative(early=0.87, left=0.7, best=0.7, last=0.71), False),
        (uninformative(early=0.88, left=0.77, best=0.7), True),  # MUCH
        (uninformative(early=0.88, left=0.79, best=0.7), False),
        (uninformative(early=0.87, left=0.7, best=0.7, last=0.8, highest=0.96), True),  # FIRST
        (uninformative(early=0.87, left=0.7, best=0.7, last=0.8, highest=0.94), False),
        (uninformative(early=0.66, left=0.1, first=0.99), True),  # SLOW
        (uninformative(early=0.64, left=0.1, first=0.99), False),
        (uninformative(ratio=3.1e-3), True),  # PATH: 200 steps of 0.003 make 0.6
        (uninformative(ratio=2.9e-3), False),
        (uninformative(ratio=7.4e-3, early=1.0, left=0.96, last=0.9), False),  # FAR: while it falls by STILL and more
        (uninformative(ratio=7.6e-3, early=1.0, left=0.96, last=0.9), True),
        (uninformative(ratio=7.4e-3, early=0.98, left=0.96, last=0.9), True),
        (uninformative(highest=1.29), True),  # WORSE
        (uninformative(highest=1.31), False),
        (uninformative(gradient=0.011), True),  # FAINT, over a constant loss of 0.5
        (uninformative(gradient=0.009), False),
        (uninformative(steps=101), True),  # ENOUGH
        (uninformative(steps=99), False),
    ],
)
def test_labels_that_tell_nothing_about_the_inputs(run, named):
    assert seen("labels_shuffled", run) is named


@pytest.mark.parametrize(("peak", "named"), [(1.45, True), (1.55, False)])  # ROSE
def test_labels_are_not_to_blame_where_the_first_steps_threw_the_net_far_off(peak, named):
    """Before the first validation, and over a first loss that is high by itself."""
    for first in (1.0, 1.6):
        run = uninformative(left=0.97, early=1.0)
        loss = CONSTANT * np.r_[np.full(20, first), np.full(60, peak * first), np.full(120, 1.0)]
        assert seen("labels_shuffled", type(run)(**vars(run) | {"traces": run.traces | {"loss": loss}})) is named


@pytest.mark.parametrize(("apart", "named"), [(0.02, True), (0.005, False)])
def test_a_loss_that_prefers_no_target_is_to_blame_and_not_the_labels(apart, named):
    """BLIND: perfect outputs for their own targets and for others, in units of the loss of a constant prediction."""
    run = uninformative()
    run.facts["probe_tests"] = {"truth": 1.0, "swapped": 1.0 + apart * run.facts["constant_loss"]}
    assert seen("labels_shuffled", run) is named


@pytest.mark.parametrize(("evaluations", "named"), [(4, True), (3, False)])
def test_labels_are_judged_after_some_evaluations(evaluations, named):
    """EVALUATIONS."""
    run = uninformative()
    traces = {name: trace[:evaluations] if len(trace) == 5 else trace for name, trace in run.traces.items()}
    run = type(run)(traces, layers=run.layers, activations=run.activations, facts=run.facts)
    assert seen("labels_shuffled", run) is named


def with_targets(mean=0.0, deviation=1000.0, left=0.3):
    tests = {"target_mean": mean, "target_std": deviation}
    return run_of(probe_loss=np.linspace(3.0, left, 5), facts={"task": "numbers", "probe_tests": tests})


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (with_targets(), True),
        (with_targets(mean=2000.0, deviation=1.0), True),
        (with_targets(mean=-2000.0, deviation=1.0), True),
        (with_targets(deviation=11.0), True),  # FAR
        (with_targets(deviation=9.0), False),
        (with_targets(mean=9.0, deviation=9.0), False),
        (with_targets(left=0.16), True),  # LEFT
        (with_targets(left=0.14), False),
        (run_of(probe_loss=0.9, facts={"task": "numbers"}), False),  # no probe with numbers: nothing is known
    ],
)
def test_targets_far_from_unit_scale(run, named):
    assert seen("targets_not_scaled", run) is named


def compared(truth=2.0, swapped=2.0, left=1.0, task="numbers"):
    """Of a loss; `truth` and `swapped` as shares of the loss of a constant prediction."""
    tests = {"truth": CONSTANT * truth, "swapped": CONSTANT * swapped}
    return run_of(probe_loss=np.linspace(1.2, left, 5), facts={"task": task, "probe_tests": tests})


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (compared(), True),
        (compared(task="yes or no"), True),
        (compared(task="classes"), False),  # TASKS
        (compared(truth=1.99), True),  # SAME
        (compared(truth=1.97), False),
        (compared(truth=2.03), False),
        (compared(truth=0.91, swapped=0.91), True),  # NO_BETTER
        (compared(truth=0.89, swapped=0.89), False),
        (compared(truth=0.0, swapped=0.0), False),  # targets that are all equal
        (compared(left=0.91), True),  # LEFT
        (compared(left=0.89), False),
        (run_of(probe_loss=1.0, facts={"task": "numbers"}), False),
    ],
)
def test_a_loss_that_compares_every_output_with_every_target(run, named):
    assert seen("loss_broadcast", run) is named


def weighted(ratio=300.0, accuracy=0.25, task="classes"):
    facts = {"task": task, "probe_tests": {"truth": 0.0, "swapped": ratio * CONSTANT}}
    run = run_of(facts=facts)
    return type(run)(run.traces | {"val_accuracy": np.full(5, accuracy)}, layers=run.layers, facts=run.facts)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (weighted(), True),
        (weighted(ratio=61.0), True),  # CHEAP
        (weighted(ratio=59.0), False),
        (weighted(accuracy=0.89), True),  # POOR
        (weighted(accuracy=0.91), False),
        (weighted(task="tokens"), True),  # TASKS
        (weighted(task="numbers"), False),
    ],
)
def test_a_class_that_weighs_far_more_than_the_others(run, named):
    assert seen("class_weights_out_of_proportion", run) is named


# --- weights --------------------------------------------------------------------------------------


def shrinking(weights=0.2, outputs=0.5):
    sizes = np.ones((200, 4))
    sizes[50:, -1] = outputs
    return run_of(weight_norm=5 * np.linspace(1, weights, 200)[:, None] * np.ones(3), activation_std=sizes)


@pytest.mark.parametrize(
    ("run", "named"),
    [(shrinking(), True), (shrinking(weights=0.29), True), (shrinking(weights=0.31), False),  # SHRUNK
     (shrinking(outputs=0.69), True), (shrinking(outputs=0.71), False)],  # SILENCED
)  # fmt: skip
def test_weights_that_shrink_with_the_outputs(run, named):
    assert seen("weight_collapse", run) is named


@pytest.mark.parametrize(("hidden", "norm", "named"), [(2, 1e5, True), (4, 900.0, True), (4, 1100.0, False)])
def test_a_large_gradient_is_an_explosion_through_many_layers_only(hidden, norm, named):
    """STACK and EXPLODED."""
    run = run_of(loss=np.linspace(20, 2, 200), probe_loss=2.0, grad_norm_total=norm)
    names = ("inputs", *(f"relu{number}" for number in range(1, hidden + 1)), "outputs")
    traces = run.traces | {"activation_std": np.tile([1.0, *[9.0] * hidden, 50.0], (200, 1))}
    run = type(run)(traces, layers=run.layers, activations=names, facts=run.facts)
    assert seen("init_too_large", run) is named


# --- frozen on purpose, and the order of diagnoses ------------------------------------------------


@pytest.mark.parametrize(("never_trained", "named"), [(["layer1.weight"], True), ([], False)])
def test_a_body_that_was_trained_before_is_frozen_on_purpose(never_trained, named):
    run = run_of(probe_loss=0.9, facts={"without_gradient": ["layer1.weight"], "never_trained": never_trained})
    run = type(run)(run.traces, layers=run.layers, parameters=("layer1.weight", "layer2.weight"), facts=run.facts)
    run.facts["matrices"] = ["layer1", "layer2"]
    assert seen("frozen_layers", run) is named


@pytest.mark.parametrize(("matrices", "left", "named"), [
    (["layer1", "layer2"], 0.41, True), (["layer1", "layer2"], 0.39, False),  # LEFT
    (["layer1", "layer2", "layer3"], 0.41, False),  # TRAINED: an adapter beside a frozen projection
])  # fmt: skip
def test_frozen_layers_do_harm_where_only_one_layer_can_learn(matrices, left, named):
    run = run_of(
        probe_loss=np.linspace(1, left, 5), facts={"without_gradient": ["layer1.weight"], "matrices": matrices}
    )
    run = type(run)(run.traces, layers=run.layers, parameters=("layer1.weight", "layer2.weight"), facts=run.facts)
    assert seen("frozen_layers", run) is named


def test_evidence_by_exclusion_is_listed_behind_direct_evidence():
    facts = {"dropouts": ["dropout1"], "dropout_rates": [0.95]}
    run = uninformative()
    run = type(run)(
        run.traces | {"train_mode": np.ones(200)},
        layers=run.layers,
        activations=run.activations,
        facts=run.facts | facts,
    )
    assert [found.name for found in diagnose(run)] == ["too_much_dropout", "labels_shuffled"]
