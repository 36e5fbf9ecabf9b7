"""Slices through the loss landscape: the loss along one or two directions around the current weights."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from labkit.recording.undisturbed import evaluating, unchanged

Direction = Mapping[str, torch.Tensor]  # parameter name -> tensor of its shape; a missing name does not move


@dataclass(frozen=True)
class Slice:
    """Losses at some distances from the current weights, as plain numbers.

    Along one direction `losses[i]` belongs to `distances[i]`; along two, `losses[i, j]` to `distances[i]` along
    the second and `distances[j]` along the first, as contour plots expect. Distances are multiples of the
    directions as they were given.
    """

    distances: np.ndarray
    losses: np.ndarray

    @property
    def here(self) -> float:
        """The loss at the current weights."""
        middle = int(np.argmin(np.abs(self.distances)))
        return float(self.losses[(middle,) * self.losses.ndim])

    @property
    def rise(self) -> float:
        """How far the highest loss of the slice is above that of the current weights; inf and NaN are kept."""
        return float(self.losses.max() - self.here)


def slice_1d(
    model: nn.Module, loss, x, y, direction: Direction | None = None, *, span=1.0, points: int = 41, seed: int = 0
) -> Slice:
    """The loss along one direction, from -span to +span, or over a pair of ends; at random where none is given."""
    direction = random_direction(model, seed) if direction is None else direction
    distances = _ruler(span, points)
    with _moving(model, loss, x, y) as loss_at:
        losses = [loss_at((distance, direction)) for distance in distances]
    return Slice(distances, np.array(losses))


def slice_2d(
    model: nn.Module,
    loss,
    x,
    y,
    first: Direction | None = None,
    second: Direction | None = None,
    *,
    span=1.0,
    points: int = 21,
    seed: int = 0,
) -> Slice:
    """The loss over the plane of two directions; those that are not given are drawn at random, with different seeds."""
    first = random_direction(model, seed) if first is None else first
    second = random_direction(model, seed + 1) if second is None else second
    distances = _ruler(span, points)
    with _moving(model, loss, x, y) as loss_at:
        losses = [[loss_at((a, first), (b, second)) for a in distances] for b in distances]
    return Slice(distances, np.array(losses))


def random_direction(model: nn.Module, seed: int = 0, by: str = "filter") -> dict[str, torch.Tensor]:
    """A random direction in which a distance means the same for every net, whatever the size of its weights.

    `by="filter"`: each unit's row of weights gets a perturbation with the norm of the row (Li et al. 2018); biases
    and norms, which have no rows, do not move. `by="tensor"`: each tensor gets a perturbation with its own norm.
    """
    if by not in ("filter", "tensor"):
        raise ValueError(f"by: expected 'filter' or 'tensor', got {by!r}")
    generator = torch.Generator().manual_seed(seed)  # its own: the global random state must not change
    direction = {}
    for name, weight in model.named_parameters():
        push = torch.randn(weight.shape, generator=generator).to(weight)  # drawn on the CPU: the same on any device
        if by == "tensor":
            direction[name] = push * (weight.detach().norm() / push.norm())
        elif weight.ndim >= 2:
            direction[name] = push * (_rows(weight.detach()) / _rows(push))
    return direction


def line_between(model: nn.Module, other: Direction) -> dict[str, torch.Tensor]:
    """The direction from the net's weights to other weights: 0 is the net, 1 the other."""
    return {name: other[name].to(weight) - weight.detach() for name, weight in model.named_parameters()}


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The norm of every row, in a shape that multiplies the tensor."""
    return tensor.flatten(1).norm(dim=1).view(-1, *[1] * (tensor.ndim - 1))


def _ruler(span, points: int) -> np.ndarray:
    low, high = span if isinstance(span, tuple | list) else (-span, span)
    if points < 2 or not low < high:
        raise ValueError(f"expected at least 2 points and low < high, got {points} from {low} to {high}")
    return np.linspace(low, high, points)


@contextlib.contextmanager
def _moving(model: nn.Module, loss, x, y):
    """`loss_at((distance, direction), ...)`: the loss in eval mode after moves from the current weights."""
    weights = dict(model.named_parameters())
    origin = {name: weight.detach().clone() for name, weight in weights.items()}

    @torch.no_grad()
    def loss_at(*moves: tuple[float, Direction]) -> float:
        for name, weight in weights.items():
            weight.copy_(origin[name])
            for distance, direction in moves:
                if name in direction:
                    weight.add_(direction[name].to(weight), alpha=float(distance))
        return float(loss(model(x), y))

    with unchanged(model), evaluating(model):
        yield loss_at
