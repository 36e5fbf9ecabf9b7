"""A fork: the original up to its step, bit by bit, and what each intervention does after it."""

import numpy as np
import pytest
import torch
from helpers import tiny, trained
from torch import nn

from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.recording.run import Run
from labkit.training.fork import CAN_CHANGE, Intervention, fork, swap_activation
from labkit.training.loop import Training
from labkit.training.models import ACTIVATIONS
from labkit.training.parts import plain_step

BASE = tiny(steps=40, depth=4, width=24, dropout=0.1, evaluate_every=10, momentum=0.9)
AT = 21  # not where a block of the meters begins or ends


def differing(one: Run, other: Run, until: int) -> list[str]:
    """The traces that are not bit-identical before a step."""
    evaluations = int((one["val_step"] <= until).sum())
    found = []
    for name in one.traces:
        rows = evaluations if one.about(name).rows == "val_step" else until
        if not np.array_equal(one[name][:rows], other[name][:rows], equal_nan=True):
            found.append(name)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "lr": 0.01},
        {"augment": "crop"},
        {"precision": "fp16", "loss_scale": "dynamic"},
        {"model": "convnet", "width": 4, "depth": 3, "normalisation": "batch"},
        {"schedule": "warmup_cosine"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "plain",
)
def test_without_an_intervention_the_whole_run_is_the_original(changes):
    recipe = BASE.but(**changes)
    original, same = trained(recipe), fork(recipe, at=AT, progress=False)
    assert differing(original, same, len(original)) == [] and set(original.traces) == set(same.traces)
    assert same.facts["weights_sha256"] == original.facts["weights_sha256"]
    assert same.recipe == original.recipe and same.facts["fork"] == {"at": AT, "skip": 0, "changes": {}}


@pytest.mark.parametrize(
    ("changes", "shows_at"),  # which step's loss is the first to differ: of a change to the update, the next one's
    [
        ({"lr": 0.001}, AT + 1),
        ({"clip": 0.05}, AT + 1),
        ({"momentum": 0.0}, AT + 1),
        ({"weight_decay": 0.5}, AT + 1),
        ({"schedule": "exponential", "decay": 0.1}, AT + 1),
        ({"activation": "tanh"}, AT),
        ({"dropout": 0.5}, AT),
        ({"loss": "mean_squared_error"}, AT),
        ({"skip": 2}, AT),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_an_intervention_changes_nothing_before_its_step_and_something_after(changes, shows_at):
    original, other = trained(BASE), fork(BASE, at=AT, progress=False, **changes)
    assert differing(original, other, AT) == []
    differs = np.flatnonzero(original["loss"] != other["loss"])
    assert differs[0] == shows_at
    assert other.facts["weights_sha256"] != original.facts["weights_sha256"]


def test_a_run_that_goes_to_pieces_is_the_original_up_to_the_fork():
    """Measured in one block with non-finite steps or without, the healthy steps have the same numbers."""
    hot = BASE.but(lr=10.0, dropout=0.0)
    original = trained(hot)
    assert original.facts["stopped"] == "non-finite"
    for at in range(4):
        other = fork(hot, at=at, lr=1e-4, progress=False)
        assert differing(original, other, at) == []
        assert len(other) == hot.steps and np.isfinite(other["loss"]).all()


def test_the_new_rate_goes_through_the_schedule():
    recipe = BASE.but(schedule="cosine")
    original, other = trained(recipe), fork(recipe, at=AT, lr=0.01, progress=False)
    assert (other["lr"][:AT] == original["lr"][:AT]).all()
    assert other["lr"][AT:] == pytest.approx(original["lr"][AT:] / 10)
    assert other.facts["fork"]["changes"] == {"lr": [0.1, 0.01]}


def test_skipped_batches_are_never_seen():
    def labels(skip: int) -> list[list[int]]:
        seen = []

        def noting_step(training, x, y):
            seen.append(y.tolist())
            plain_step(training, x, y)

        fork(BASE.but(step=noting_step), at=AT, skip=skip, progress=False)
        return seen

    all_of_them, some = labels(0), labels(3)
    assert some[:AT] == all_of_them[:AT] and some[AT:-3] == all_of_them[AT + 3 :]


def test_steps_are_clipped_by_the_threshold_of_their_time():
    original, other = trained(BASE), fork(BASE, at=AT, clip=1e-6, progress=False)
    assert not original.clipped.any()
    assert not other.clipped[:AT].any() and other.clipped[AT:].all()


def test_a_fork_that_clips_values_knows_every_step_that_was_clipped():
    clipped = []

    def noting_step(training, x, y):
        plain_step(training, x, y)
        clipped.append(any(bool((weight.grad.abs() == 0.1).any()) for weight in training.weights()))

    recipe = tiny(steps=150, samples=500, width=16, batch_size=32, evaluate_every=0, step=noting_step)
    run = fork(recipe, at=60, clip=0.1, clip_by="value", progress=False)
    assert run.clipped.tolist() == clipped
    assert {*clipped[:60]} == {False} and {*clipped[60:]} == {False, True}


def test_a_broken_loop_is_mended_on_the_way():
    sick = FAILURES["step_missing"].sick.but(steps=40, samples=500, device="cpu")
    mended = fork(sick, at=20, step=plain_step, progress=False)
    assert (mended["update_norm"][:20] == 0).all() and (mended["update_norm"][20:] > 0).all()


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_an_activation_that_was_swapped_computes_as_a_new_one_and_keeps_its_hooks(name):
    heard, x = [], torch.linspace(-3, 3, 13)
    module = nn.LeakyReLU(0.3)
    module.register_forward_hook(lambda *_: heard.append(1))
    swap_activation(module, name)
    assert torch.equal(module(x), ACTIVATIONS[name]()(x)) and heard == [1]
    assert "(" in repr(module) and type(module) is ACTIVATIONS[name]


def test_a_recurrent_net_swaps_its_activation_too():
    recipe = tiny(model="rnn", activation="tanh", steps=6)
    other = fork(recipe, at=3, activation="relu", progress=False)
    assert differing(trained(recipe), other, 3) == [] and other["loss"][3] != trained(recipe)["loss"][3]
    with pytest.raises(RecipeError, match="'relu' or 'tanh'"):
        fork(recipe, at=3, activation="gelu", progress=False)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"at": 40}, "at: expected a whole number at least 0 and at most 39, got 40"),
        ({"at": -1}, "at: expected a whole number"),
        ({"skip": 1.5}, "skip: expected a whole number"),
        ({"lr": -1}, "lr: expected a number above 0"),
        ({"depth": 3}, "depth is fixed before the first step.*lr, schedule"),
        ({"lrr": 3}, "Did you mean 'lr'"),
    ],
)
def test_what_cannot_be_done_is_refused_before_training(wrong, words):
    with pytest.raises(RecipeError, match=words):
        fork(BASE, **{"at": AT, "progress": False} | wrong)


def test_what_this_net_does_not_have_is_refused():
    with pytest.raises(RecipeError, match="momentum: Adam has none"):
        fork(BASE.but(optimizer="adam"), at=AT, momentum=0.5, progress=False)
    with pytest.raises(RecipeError, match="built without dropout"):
        fork(BASE.but(dropout=0.0), at=AT, dropout=0.5, progress=False)
    with pytest.raises(RecipeError, match="no relu layer to swap"):
        fork(BASE.but(depth=1), at=AT, activation="tanh", progress=False)
    with pytest.raises(RecipeError, match="processes"):
        fork(BASE.but(processes=2), at=AT, progress=False)


def test_a_step_that_the_run_never_reaches_says_how_far_it_goes():
    hot = BASE.but(lr=10.0, dropout=0.0)
    steps = len(trained(hot))
    with pytest.raises(RecipeError, match=rf"ends after {steps} steps \(non-finite\); fork at {steps - 1} or before"):
        fork(hot, at=39, lr=0.1, progress=False)


def test_a_fork_can_be_stopped():
    stopped = fork(BASE, at=AT, lr=0.01, progress=False, each_step=lambda recorder: recorder.steps == 5)
    assert len(stopped) == 5 and stopped.facts["stopped"] == "on request"


def test_everything_that_can_change_is_in_a_recipe_and_in_use():
    assert set(CAN_CHANGE) <= set(BASE.summary())
    intervention = Intervention(BASE, AT, 0, {"clip_by": "value", "clip": 0.5})
    training = Training(intervention.recipe)
    intervention.now = AT
    training.recorder = training.new_recorder(True)
    intervention.step(training, *(part[:8] for part in training.data.train))
    assert (training.recipe.clip, training.recipe.clip_by) == (0.5, "value")
