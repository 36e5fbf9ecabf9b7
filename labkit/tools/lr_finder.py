"""Learning-rate range test: raise the rate step by step, watch the loss, and put everything back."""

import contextlib
import copy
import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch

SMOOTHING = 0.9  # of the loss that is read, bias-corrected: half of the memory of the usual 0.95, for half the lag
STOP = 4.0  # the test ends when the smoothed loss is this many times its lowest value
CHECK_EVERY = 8  # steps between the checks for that, because a check makes a GPU wait
MARGIN = 10.0  # a rate that diverges is never closer to the suggestion than this


@dataclass(frozen=True)
class RangeTest:
    """The loss at every learning rate that was tried, and the rate it speaks for."""

    lrs: np.ndarray
    losses: np.ndarray  # raw
    smoothed: np.ndarray
    suggestion: float | None  # None where no rate lowered the loss
    diverged_at: float | None  # the rate from which the loss left its valley for good; None where it never did

    def __repr__(self) -> str:
        spoken = f"suggestion {self.suggestion:.2g}" if self.suggestion else "no rate lowered the loss"
        end = f", diverges at {self.diverged_at:.2g}" if self.diverged_at else ""
        return f"<RangeTest of {len(self.lrs)} rates from {self.lrs[0]:.1g} to {self.lrs[-1]:.1g}: {spoken}{end}>"

    def plot(self, ax=None):
        """Raw and smoothed loss over the learning rate, with the suggestion marked."""
        from labkit.drawing.plots import range_test

        return range_test(self, ax)

    def _repr_html_(self) -> str:
        from labkit.drawing.html import picture_html

        return picture_html(self.plot().figure, repr(self).strip("<>"))


def find_lr(
    model, loss_fn, data, optimizer, *, low: float = 1e-5, high: float = 10.0, steps: int = 100, batch_size: int = 128
) -> RangeTest:
    """Train for some steps with a learning rate that rises from `low` to `high`; suggest one; undo everything.

    `data` is a loader of (inputs, targets), or two tensors, which are dealt in batches at random. Weights, buffers,
    gradients, the optimizer's state and rates, the mode and the random numbers are afterwards as they were.
    """
    if not 0 < low < high or steps < 2:
        raise ValueError(f"expected 0 < low < high and at least 2 steps, got low={low}, high={high}, steps={steps}")
    lrs, losses = np.geomspace(low, high, steps), []
    with unchanged(model, optimizer):
        model.train()
        for step, (x, y) in enumerate(itertools.islice(batches(model, data, batch_size), steps)):
            for group in optimizer.param_groups:
                group["lr"] = float(lrs[step])
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if step % CHECK_EVERY == CHECK_EVERY - 1 and left_the_valley(values(losses)):
                break
    found = values(losses)
    return judged(lrs[: len(found)], found)


def judged(lrs: np.ndarray, losses: np.ndarray) -> RangeTest:
    """Read the suggestion off the losses: the steepest descent before the lowest point, and far from divergence."""
    smooth = smoothed(losses)
    fine = np.isfinite(smooth)
    if not fine.any():
        return RangeTest(lrs, losses, smooth, None, float(lrs[0]))
    lowest = int(np.nanargmin(np.where(fine, smooth, np.nan)))
    beyond = np.flatnonzero(~fine | (smooth > STOP * smooth[lowest]))
    beyond = beyond[beyond > lowest]
    diverged_at = float(lrs[beyond[0]]) if len(beyond) else None
    if lowest < 2 or smooth[lowest] > 0.98 * smooth[0]:  # less than noise: nothing was learned at any rate
        return RangeTest(lrs, losses, smooth, None, diverged_at)
    slopes = np.gradient(smooth[: lowest + 1], np.log(lrs[: lowest + 1]))
    steepest = float(lrs[int(np.argmin(slopes))])
    ceiling = (diverged_at or math.inf) / MARGIN
    return RangeTest(lrs, losses, smooth, min(steepest, max(ceiling, float(lrs[0]))), diverged_at)


def smoothed(losses: np.ndarray) -> np.ndarray:
    """Bias-corrected exponential mean."""
    average, result = 0.0, np.empty(len(losses))
    for index, value in enumerate(losses):
        average = SMOOTHING * average + (1 - SMOOTHING) * value
        result[index] = average / (1 - SMOOTHING ** (index + 1))
    return result


def left_the_valley(losses: np.ndarray) -> bool:
    smooth = smoothed(losses)
    return not np.isfinite(smooth[-1]) or smooth[-1] > STOP * np.nanmin(smooth)


def values(losses: list[torch.Tensor]) -> np.ndarray:
    return torch.stack(losses).double().cpu().numpy() if losses else np.zeros(0)


def batches(model, data, size: int):
    """Endless (inputs, targets) on the model's device, from a loader or from two tensors."""
    device = next(model.parameters()).device
    if isinstance(data, tuple | list) and len(data) == 2 and all(map(torch.is_tensor, data)):
        x, y = data
        while True:
            for batch in torch.randperm(len(y)).to(y.device).split(min(size, len(y))):
                yield x.index_select(0, batch).to(device), y.index_select(0, batch).to(device)
    while True:
        for x, y in data:
            yield x.to(device), y.to(device)


@contextlib.contextmanager
def unchanged(model, optimizer=None):
    """Whatever happens inside, afterwards model, gradients, optimizer, modes and random numbers are as before."""
    weights = [(weight, weight.detach().clone(), weight.grad) for weight in model.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer else None
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    for weight, _, _ in weights:
        weight.grad = None  # the caller's gradients are kept aside, not written over
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before, gradient in weights:
                    weight.copy_(before)
                    weight.grad = gradient
                for buffer, before in buffers:
                    buffer.copy_(before)
            for module, mode in modes:
                module.training = mode
            if optimizer:
                optimizer.load_state_dict(state)
