"""Learning-rate range test: raise the learning rate step by step, record the loss, and restore everything."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit.recording.run import exponential_mean
from labkit.recording.undisturbed import unchanged

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHING = 0.9  # of the loss, bias-corrected; the common 0.95 lags twice as much
STOP = 4.0  # the test ends when the smoothed loss is this many times its lowest value
CHECK_EVERY = 8  # steps between the checks for that, because a check synchronises a GPU
MARGIN = 10.0  # the suggestion is at least this factor below the learning rate that diverges


@dataclass(frozen=True)
class RangeTest:
    """The loss at every learning rate that was tried, and the learning rate that it suggests."""

    lrs: np.ndarray
    losses: np.ndarray  # raw
    smoothed: np.ndarray
    suggestion: float | None  # None where no learning rate lowered the loss
    diverged_at: float | None  # the learning rate from which the loss stays too high; None where it never does

    def __repr__(self) -> str:
        spoken = f"suggestion {self.suggestion:.2g}" if self.suggestion else "no learning rate lowered the loss"
        end = f", diverges at {self.diverged_at:.2g}" if self.diverged_at else ""
        return f"<RangeTest of {len(self.lrs)} rates from {self.lrs[0]:.1g} to {self.lrs[-1]:.1g}: {spoken}{end}>"

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Raw and smoothed loss over the learning rate, with the suggestion marked."""
        from labkit.drawing.plots import range_test

        return range_test(self, ax)

    def _repr_html_(self) -> str:
        from labkit.drawing.html import picture_html

        return picture_html(self.plot().figure, repr(self).strip("<>"))


def find_lr(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    data: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    *,
    low: float = 1e-5,
    high: float = 10.0,
    steps: int = 100,
    batch_size: int = 128,
) -> RangeTest:
    """Train for some steps with a learning rate that rises from `low` to `high`; suggest one; undo everything.

    `data` is a loader of (inputs, targets), or two tensors, which are shuffled into batches. Weights, buffers,
    gradients, optimizer state and learning rates, modes and random numbers are restored afterwards.
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
            if step % CHECK_EVERY == CHECK_EVERY - 1 and has_diverged(values(losses)):
                break
    found = values(losses)
    return with_suggestion(lrs[: len(found)], found)


def with_suggestion(lrs: np.ndarray, losses: np.ndarray) -> RangeTest:
    """The test with its suggestion: the steepest descent before the lowest loss, and far from divergence."""
    smooth = exponential_mean(losses, SMOOTHING)
    fine = np.isfinite(smooth)
    if not fine.any():
        return RangeTest(lrs, losses, smooth, None, float(lrs[0]))
    lowest = int(np.nanargmin(np.where(fine, smooth, np.nan)))
    beyond = np.flatnonzero(~fine | (smooth > STOP * smooth[lowest]))
    beyond = beyond[beyond > lowest]
    diverged_at = float(lrs[beyond[0]]) if len(beyond) else None
    if lowest < 2 or smooth[lowest] > 0.98 * smooth[0]:  # within the noise: no learning rate lowered the loss
        return RangeTest(lrs, losses, smooth, None, diverged_at)
    derivatives = np.gradient(smooth[: lowest + 1], np.log(lrs[: lowest + 1]))
    steepest = float(lrs[int(np.argmin(derivatives))])
    ceiling = (diverged_at or math.inf) / MARGIN
    return RangeTest(lrs, losses, smooth, min(steepest, max(ceiling, float(lrs[0]))), diverged_at)


def has_diverged(losses: np.ndarray) -> bool:
    smooth = exponential_mean(losses, SMOOTHING)
    return not np.isfinite(smooth[-1]) or smooth[-1] > STOP * np.nanmin(smooth)


def values(losses: list[Tensor]) -> np.ndarray:
    return torch.stack(losses).double().cpu().numpy() if losses else np.zeros(0)


def batches(model: nn.Module, data: Iterable[Any], size: int) -> Iterator[tuple[Tensor, Tensor]]:
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
