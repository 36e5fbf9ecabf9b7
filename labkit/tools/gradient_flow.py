"""Does the gradient reach every layer? One line per parameter: its norm, its share of the largest, and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from labkit.recording.undisturbed import unchanged

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VANISHING = 1e-3  # of the last matrix's gradient per weight; healthy nets keep within a factor of 30 of it
EXPLODING = 1e3


@dataclass(frozen=True)
class Flow:
    """One parameter's gradient."""

    name: str
    norm: float | None  # None: no gradient at all
    size: float  # root mean square per entry: comparable between large and small tensors
    relative: float  # of the last parameter that has a gradient
    status: str  # ok, no gradient, zero, vanishing, exploding, not finite


@dataclass(frozen=True)
class GradientFlow:
    """The gradients of all parameters, in forward order."""

    rows: tuple[Flow, ...]

    @property
    def problems(self) -> list[Flow]:
        return [row for row in self.rows if row.status != "ok"]

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'parameter':{width}}  {'norm':>9}  {'per entry':>9}  {'/ last':>8}  status"]
        for row in self.rows:
            norm = "none" if row.norm is None else f"{row.norm:.3g}"
            lines.append(f"{row.name:{width}}  {norm:>9}  {row.size:>9.3g}  {row.relative:>8.2g}  {row.status}")
        return "\n".join(lines)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Bars: the gradient of each parameter."""
        from labkit.drawing.plots import gradient_flow

        return gradient_flow(self, ax)


def gradient_flow(
    model: nn.Module, loss_fn: Callable[[Any, Any], torch.Tensor] | None = None, batch: Sequence[Any] | None = None
) -> GradientFlow:
    """Report the present gradients, or those of one batch where `loss_fn` and `batch=(x, y)` are given.

    Changes nothing: with a batch, gradients and buffers are restored afterwards.
    """
    if batch is None:
        return report(model)
    if loss_fn is None:
        raise ValueError("loss_fn: expected the loss of the batch, got None; give both, or neither")
    with unchanged(model):
        loss_fn(model(batch[0]), batch[1]).backward()
        return report(model)


def report(model: nn.Module) -> GradientFlow:
    entries = []
    for name, weight in model.named_parameters():
        gradient = weight.grad
        norm = None if gradient is None else gradient.detach().double().norm().item()
        entries.append((name, norm, 0.0 if norm is None else norm / weight.numel() ** 0.5))
    alive = [size for _, norm, size in entries if norm and torch.isfinite(torch.tensor(norm))]
    last = alive[-1] if alive else 0.0
    return GradientFlow(tuple(_row(name, norm, size, last) for name, norm, size in entries))


def _row(name: str, norm: float | None, size: float, last: float) -> Flow:
    relative = size / last if last else 0.0
    if norm is None:
        status = "no gradient"
    elif norm != norm or norm == float("inf"):
        status = "not finite"
    elif norm == 0:
        status = "zero"
    elif relative < VANISHING:
        status = "vanishing"
    elif relative > EXPLODING:
        status = "exploding"
    else:
        status = "ok"
    return Flow(name, norm, size, relative, status)
