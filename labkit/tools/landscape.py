"""Slices through the loss: its value along one direction or two, around the weights that a net has now."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

Direction = Mapping[str, torch.Tensor]  # parameter name -> tensor of its shape; a missing name does not move


@dataclass(frozen=True)
class Slice:
    """Losses at some distances from where the net stands, as plain numbers.

    Along one direction `losses[i]` belongs to `distances[i]`; along two, `losses[i, j]` to `distances[i]` along
    the second and `distances[j]` along the first, as a contour plot wants it. Distances are multiples of the
    directions as they were given.
    """

    distances: np.ndarray
    losses: np.ndarray

    @property
    def here(self) -> float:
        """The loss nearest to the point itself."""
        middle = int(np.argmin(np.abs(self.distances)))
        return float(self.losses[(middle,) * self.losses.ndim])

    @property
    def rise(self) -> float:
        """How far the highest point of the slice lies above the net's own; infinite or NaN values count as such."""
        return float(self.losses.max() - self.here)


def slice_1d(
    model: nn.Module, loss, x, y, direction: Direction | None = None, *, span=1.0, points: int = 41, seed: int = 0
) -> Slice:
    """The loss along one direction, from -span to +span, or over a pair of ends; at random where none is given."""
    direction = random_direction(model, seed) if direction is None else direction
    distances = _ruler(span, points)
    with _Mover(model) as mover:
        losses = [mover.loss_at(loss, x, y, (distance, direction)) for distance in distances]
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
    """The loss over the plane of two directions; those that are not given are drawn at random, each its own."""
    first = random_direction(model, seed) if first is None else first
    second = random_direction(model, seed + 1) if second is None else second
    distances = _ruler(span, points)
    with _Mover(model) as mover:
        losses = [[mover.loss_at(loss, x, y, (a, first), (b, second)) for a in distances] for b in distances]
    return Slice(distances, np.array(losses))


def random_direction(model: nn.Module, seed: int = 0, by: str = "filter") -> dict[str, torch.Tensor]:
    """A random direction in which a distance means the same for every net, whatever the size of its weights.

    `by="filter"`: each unit's row of weights gets a push as long as the row itself (Li et al. 2018), and biases
    and norms, which have no rows, stay. `by="tensor"`: each tensor gets a push as long as itself.
    """
    if by not in ("filter", "tensor"):
        raise ValueError(f"by: expected 'filter' or 'tensor', got {by!r}")
    generator = torch.Generator().manual_seed(seed)  # its own: drawing must not shift anybody's random numbers
    direction = {}
    for name, weight in model.named_parameters():
        push = torch.randn(weight.shape, generator=generator).to(weight)  # drawn on the CPU: the same on any device
        if by == "tensor":
            direction[name] = push * (weight.detach().norm() / push.norm())
        elif weight.ndim >= 2:
            direction[name] = push * (_rows(weight.detach()) / _rows(push))
    return direction


def line_between(model: nn.Module, other: Direction) -> dict[str, torch.Tensor]:
    """The direction from the net's weights to another state of them: distance 0 is here, 1 is there."""
    return {name: other[name].to(weight) - weight.detach() for name, weight in model.named_parameters()}


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The norm of every row, in a shape that multiplies the tensor."""
    return tensor.flatten(1).norm(dim=1).view(-1, *[1] * (tensor.ndim - 1))


def _ruler(span, points: int) -> np.ndarray:
    low, high = span if isinstance(span, tuple | list) else (-span, span)
    if points < 2 or not low < high:
        raise ValueError(f"expected at least 2 points and low < high, got {points} from {low} to {high}")
    return np.linspace(low, high, points)


class _Mover:
    """Moves a net's weights about, in eval mode; leaves them, and every buffer and mode, exactly as they were."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __enter__(self):
        self.weights = dict(self.model.named_parameters())
        self.state = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.origin = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        return self

    @torch.no_grad()
    def loss_at(self, loss, x, y, *moves: tuple[float, Direction]) -> float:
        """The loss after these moves, each a distance along a direction, from where the net stood."""
        for name, weight in self.weights.items():
            weight.copy_(self.origin[name])
            for distance, direction in moves:
                if name in direction:
                    weight.add_(direction[name].to(weight), alpha=float(distance))
        return float(loss(self.model(x), y))

    @torch.no_grad()
    def __exit__(self, *_) -> None:
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(self.state[name])
        for name, weight in self.weights.items():
            weight.copy_(self.origin[name])
        for module, mode in self.modes:
            module.training = mode
