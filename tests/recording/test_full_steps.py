"""Which steps are measured in full, and what the others have: exact norms, and the last activations."""

import math

import numpy as np
import pytest
import torch
from helpers import tiny, trained

from labkit.errors import RecipeError
from labkit.recording.meters import held_until_next
from labkit.recording.recorder import AFTER_JUMP, FIRST_FULL, FULL_EVERY, JUMP, MEMORY, FullSteps, RunningMean
from labkit.training.loop import train

THINNED = ("activation_mean", "activation_std", "activation_saturated", "grad_min", "grad_max", "grad_near_zero")
STEPS = FIRST_FULL + 3 * FULL_EVERY + 2


def in_full(full: FullSteps, steps: int) -> list[int]:
    return [step for step in range(steps) if step in full]


def test_the_first_steps_and_every_sixteenth():
    late = [step for step in range(FIRST_FULL, 120) if step % FULL_EVERY == 0]
    assert in_full(FullSteps(FULL_EVERY), 120) == [*range(FIRST_FULL), *late]
    assert in_full(FullSteps(1), 120) == list(range(120))


def calm(full: FullSteps, steps: int) -> None:
    """Losses and norms that wobble by a tenth."""
    for step in range(steps):
        assert not full.jumped(step, 1 + 0.1 * math.sin(step), 2 + 0.2 * math.cos(step), taken=step + 1)


@pytest.mark.parametrize(("loss", "norm"), [(3.0, 2.0), (1.0, 9.0), (math.nan, 2.0), (1.0, math.inf)])
def test_after_a_jump_of_the_loss_or_the_norm_every_step_is_measured(loss, norm):
    full = FullSteps(FULL_EVERY)
    calm(full, 101)
    assert full.jumped(101, loss, norm, taken=102)
    assert [step in full for step in range(102, 112)] == [True] * AFTER_JUMP + [False] * 2
    assert full.facts(np.arange(106)) == {"first": FIRST_FULL, "every": FULL_EVERY, "also": [102, 103, 104, 105]}


def test_a_jump_that_is_found_late_has_the_steps_from_then_on():
    full = FullSteps(FULL_EVERY)
    calm(full, 101)
    assert full.jumped(101, 9.0, 2.0, taken=128)
    assert all(step in full for step in range(128, 136)) and 137 not in full
    assert full.facts(np.arange(200))["also"] == list(
        range(129, 136)
    )  # 128 is one of every 16, and none before it was measured


def test_a_jump_is_seen_from_the_end_of_the_first_steps_on():
    running = RunningMean()
    for step in range(FIRST_FULL):
        running.jumped(1 + 0.1 * math.sin(step))
    assert running.jumped(9.0)


@pytest.mark.parametrize(("times", "jumped"), [(0.8 * JUMP, False), (1.5 * JUMP, True)])
def test_a_jump_is_so_many_standard_deviations_above_the_mean(times, jumped):
    values, running = np.random.default_rng(0).normal(5.0, 0.1, 40 * MEMORY), RunningMean()
    assert not any(running.jumped(value) for value in values)
    assert running.jumped(5.0 + 0.1 * times) == jumped


def test_a_fall_is_no_jump_and_the_beginning_has_nothing_to_compare_with():
    running = RunningMean()
    assert not any(running.jumped(value) for value in [1.0, 1.0, 50.0, 1.0])
    for _ in range(3 * MEMORY):
        running.jumped(50.0)
    assert not running.jumped(0.1)


def test_a_value_stands_until_the_next_is_measured():
    assert held_until_next(np.array([5.0, 7.0, 9.0]), [0, 1, 4], 6).tolist() == [5, 7, 7, 7, 9, 9]
    assert held_until_next(np.array([5.0, 7.0]), [0, 1], 2).tolist() == [5, 7]


def test_norms_are_exact_at_every_step_and_the_rest_at_the_steps_in_full():
    recipe = tiny(steps=STEPS, samples=500, width=16, batch_size=32, activation="tanh")
    thinned, everything = trained(recipe), train(recipe, progress=False, full_every=1)
    assert thinned.facts["weights_sha256"] == everything.facts["weights_sha256"]
    full = thinned.measured_in_full
    assert full[:FIRST_FULL].all() and 0 < (~full).sum() < len(full) and everything.measured_in_full.all()
    for name in everything.traces:
        assert everything[name].shape == thinned[name].shape, name
        if name in THINNED:
            np.testing.assert_array_equal(thinned[name][full], everything[name][full], err_msg=name)
            last = np.maximum.accumulate(np.where(full, np.arange(STEPS), 0))
            np.testing.assert_array_equal(thinned[name], thinned[name][last], err_msg=name)
        else:
            np.testing.assert_array_equal(thinned[name], everything[name], err_msg=name)
    assert not np.array_equal(thinned["grad_max"], everything["grad_max"])


def test_a_corrupt_batch_is_looked_at_in_full():
    recipe = tiny(steps=160, samples=500, width=16, batch_size=32)

    def corrupt(split, recipe, generator):
        for step in range(recipe.steps):
            chosen = torch.randint(len(split.y), (recipe.batch_size,), generator=generator)
            yield split.x[chosen] * (-50 if step == 101 else 1), split.y[chosen]

    sick, healthy = trained(recipe.but(batches=corrupt)), trained(recipe)
    everything = train(recipe.but(batches=corrupt), progress=False, full_every=1)
    np.testing.assert_array_equal(sick["grad_max"][101], everything["grad_max"][101])
    assert sick.measured_in_full[102:110].all()
    assert set(range(102, 110)) <= set(sick.facts["measured_in_full"]["also"])
    assert len(healthy.facts["measured_in_full"]["also"]) < 20


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "all"])
def test_a_wrong_number_is_refused(wrong):
    with pytest.raises(RecipeError, match="full_every"):
        train(tiny(steps=2), full_every=wrong)
