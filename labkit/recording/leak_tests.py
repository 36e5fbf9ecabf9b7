"""Is the target among the inputs? A column that gives it away, tokens that are only copied, a look into the future."""

import math
from typing import Any

import torch
from torch import nn

from labkit.recording.nested import call, first_tensor

ENOUGH = 64  # different samples, from which on a column that explains the target does not do so by chance
PER_CLASS = 8  # samples per different target, from which on targets are classes
COLUMNS = 3  # inputs of one or two columns, as those of a line through points, have nothing else to explain a target
IGNORED = -100  # the label of places that do not count


def best_column(values: torch.Tensor, targets: torch.Tensor) -> float:
    """The share of one column's variance that the target explains, for the column where it is highest; NaN if unknown.

    Of classes: the variance between them, over all of it. Of numbers: the squared correlation. `values` is (samples,
    columns), `targets` one number per sample. Samples that came again and classes that are rare say nothing.
    """
    if len(values) != len(targets) or values.shape[1] < COLUMNS or not values.isfinite().all():
        return math.nan
    values, targets = once(values.double(), targets.double())
    kinds, index, counts = targets.unique(return_inverse=True, return_counts=True)
    classes = len(kinds) * PER_CLASS <= len(targets)
    if classes:
        common = counts[index] >= PER_CLASS
        values, targets = values[common], targets[common]
    if len(values) < ENOUGH or len(targets.unique()) < 2:
        return math.nan
    values = values - values.mean(0)
    total = values.square().sum(0)
    left = total - (between_classes(values, targets) if classes else along(values, targets))
    varied = total > 1e-9 * len(values)  # float32 rounds columns that are constant by less
    return float((1 - left / total)[varied].max()) if varied.any() else math.nan


def once(values: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples that differ from all before them, with their targets."""
    different, index = values.unique(dim=0, return_inverse=True)
    first = torch.full((len(different),), len(values), device=values.device)
    first.scatter_reduce_(0, index, torch.arange(len(values), device=values.device), "amin")
    return values[first], targets[first]


def between_classes(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of squares of the class means, in each column; `values` are centred."""
    _, index, counts = targets.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), values.shape[1], dtype=values.dtype, device=values.device)
    return (sums.index_add_(0, index, values).square() / counts[:, None]).sum(0)


def along(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of squares that a straight line through the targets explains, in each column; `values` are centred."""
    centred = targets - targets.mean()
    return (values * centred[:, None]).sum(0).square() / centred.square().sum()


@torch.no_grad()
def token_tests(model: nn.Module, x: Any, y: Any, outputs: torch.Tensor | None) -> dict[str, float]:
    """Where tokens are predicted for tokens: the share that equals its own input; and, of a language model, how much
    the outputs depend on tokens that come later, relative to their own spread."""
    if not (torch.is_tensor(x) and torch.is_tensor(y) and x.ndim == 2 and x.shape == y.shape):
        return {}
    counted = y != IGNORED
    if x.is_floating_point() or y.is_floating_point() or not counted.any():
        return {}
    found = {"copied": float((x == y)[counted].float().mean())}
    half = x.shape[1] // 2
    next_one = half and len(x) > 1 and torch.equal(x[:, 1:], y[:, :-1])
    if next_one and outputs is not None and outputs.shape[:2] == x.shape:
        other = torch.cat([x[:, :half], x[:, half:].roll(1, 0)], 1)
        again = first_tensor(call(model, other))
        assert again is not None  # the same net gave outputs before
        change = (again - outputs)[:, :half].float().square().mean().sqrt()
        found["future"] = float(change / outputs.float().std().clamp(min=1e-30))
    return found
