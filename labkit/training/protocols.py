"""What each part of a recipe receives and returns.

A part is any function with the right arguments: nothing has to inherit from these classes. They are written down here
for readers, editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from labkit.training.data import Data, Split

if TYPE_CHECKING:
    from labkit.training.recipe import Recipe
    from labkit.training.state import TrainingState

P = TypeVar("P")


class Part(Protocol[P]):
    """The type of a recipe's entry that is a part.

    You may set it to a function or to the name of a built-in one ("adam"); when you read it, it is always the function.
    """

    def __get__(self, recipe: object, owner: type | None = None) -> P: ...
    def __set__(self, recipe: object, value: P | str) -> None: ...


class DataPart(Protocol):
    """Loads the data. Called once, before the model is built.

    It returns a `Data`: a training split, a validation split and the number of classes. `recipe.samples`,
    `recipe.inputs`, `recipe.label_noise` and `recipe.device` say how many images, on which scale, and where.
    """

    def __call__(self, recipe: Recipe, /) -> Data: ...


class ModelPart(Protocol):
    """Builds the net, with its weights initialised. Called once.

    `data` tells the shape of the inputs (`data.train.x.shape[1:]`) and the number of classes. The net maps a batch of
    images to one row of logits per image.
    """

    def __call__(self, recipe: Recipe, data: Data, /) -> nn.Module: ...


class LossPart(Protocol):
    """The loss of one batch, as a scalar tensor with a gradient.

    `outputs` are the logits (batch, classes), `targets` the labels (batch,) as whole numbers.
    """

    def __call__(self, outputs: Tensor, targets: Tensor, /) -> Tensor: ...


class OptimizerPart(Protocol):
    """Makes the optimizer of the net's parameters. Called once, after the net is on its device."""

    def __call__(self, model: nn.Module, recipe: Recipe, /) -> Optimizer: ...


class SchedulePart(Protocol):
    """The learning rate of one step. Called before every step, counted from 0; `recipe.lr` is the peak."""

    def __call__(self, step: int, recipe: Recipe, /) -> float: ...


class BatchesPart(Protocol):
    """The batches, one (images, labels) pair for each step, without end: the loop takes `recipe.steps` of them.

    Draw random numbers from `generator`, so that the order depends on the seed and on nothing else.
    """

    def __call__(self, split: Split, recipe: Recipe, generator: Generator, /) -> Iterator[tuple[Tensor, Tensor]]: ...


class StepPart(Protocol):
    """The body of the training loop: zero the gradients, compute the loss, backpropagate, update the weights.

    `training` has the model, the optimizer and one method for each of these moves. Call `training.look(loss, x, y)`
    once, between backward and update: that is when the instruments read the gradients.
    """

    def __call__(self, training: TrainingState, x: Tensor, y: Tensor, /) -> None: ...


class MaskPart(Protocol):
    """Which tokens a token may attend to: (queries, keys), True where it may. The queries are the last of the keys."""

    def __call__(self, queries: int, keys: int, device: torch.device, /) -> Tensor: ...


class AttendPart(Protocol):
    """Attention weights from scores (sample, head, query, key) and the mask."""

    def __call__(self, scores: Tensor, mask: Tensor, /) -> Tensor: ...


class SplitHeadsPart(Protocol):
    """(sample, token, width) -> (sample, head, token, width / heads)."""

    def __call__(self, x: Tensor, heads: int, /) -> Tensor: ...


class MergeHeadsPart(Protocol):
    """(sample, head, token, width / heads) -> (sample, token, width)."""

    def __call__(self, x: Tensor, /) -> Tensor: ...


class PlacesPart(Protocol):
    """The positions (tokens,) of the next tokens, when `seen` tokens are in the cache; 0 in training."""

    def __call__(self, seen: int, tokens: int, device: torch.device, /) -> Tensor: ...


class WritePart(Protocol):
    """Writes so many tokens after the prompts (samples, tokens), which are not part of the result.

    Called with the net in eval mode. Draw random numbers from `generator`, as `labkit.training.writing.draw` does.
    """

    def __call__(
        self, model: nn.Module, prompts: Tensor, tokens: int, temperature: float, generator: Generator, /
    ) -> Tensor: ...


class EvaluatePart(Protocol):
    """Measures the net on a split: a number for each name, for example {"loss": 0.3, "accuracy": 0.91}.

    Called before some of the steps and after the last one. Each name becomes a trace of the run, `val_loss` for "loss".
    """

    def __call__(self, training: TrainingState, split: Split, /) -> Mapping[str, float | Tensor]: ...
