"""Preview the learning rate of every step before training: of a recipe's schedule or of any torch scheduler."""

import copy

import numpy as np

PRECISION = 1e-12


def preview(schedule, steps: int, recipe=None) -> np.ndarray:
    """The learning rate at every step: of a recipe's schedule, or of a torch scheduler, which is not changed."""
    if recipe is not None:
        return np.array([schedule(step, recipe) for step in range(steps)])
    optimizer = schedule.optimizer
    before = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(schedule.state_dict())
    counted, optimizer._opt_called = getattr(optimizer, "_opt_called", False), True  # no warning about the order
    try:
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            schedule.step()
        return np.array(rates)
    finally:
        optimizer.load_state_dict(before[0])
        schedule.load_state_dict(before[1])
        optimizer._opt_called = counted


def describe(rates: np.ndarray) -> str:
    """A schedule in one sentence: its peak, its end, and how many steps are wasted at 0."""
    peak = int(np.argmax(rates))
    start = f"{rates[0]:.3g} at step 0, {rates[peak]:.3g} at step {peak}" if peak else f"{rates[0]:.3g} at step 0"
    words = [f"{start} (its peak), {rates[-1]:.3g} at the end"]
    idle = int((rates < PRECISION * rates.max()).sum())
    if idle:
        words.append(f"{idle} of {len(rates)} steps at a rate of 0")
    lowest = int(np.argmin(rates[peak:])) + peak
    if rates[-1] > 2 * rates[lowest] + PRECISION * rates.max() and lowest > peak:
        words.append(f"it rises again after step {lowest}: the schedule is shorter than the run")
    return "; ".join(words)
