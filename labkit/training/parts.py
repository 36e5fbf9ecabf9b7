"""The built-in parts of a recipe: losses, optimizers, schedules, batches, the step and the evaluation.

Each is an ordinary function of the type that protocols.py describes. A failure mode that is a code bug brings its own,
in its own file.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from labkit.training.data import augmenter

if TYPE_CHECKING:
    from labkit.training.data import Split
    from labkit.training.recipe import Recipe
    from labkit.training.state import TrainingState

# --- loss(outputs, targets) -> scalar -------------------------------------------------------------


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared distance to the one-hot label, averaged: classification treated as regression."""
    return mse_loss(outputs, one_hot(targets, outputs.shape[1]).to(outputs.dtype))


LOSSES = (cross_entropy, mean_squared_error)

# --- optimizer(model, recipe) -> torch optimizer --------------------------------------------------


def sgd(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Stochastic gradient descent with momentum."""
    parameters = list(model.parameters())
    # When GradScaler skips the first step, fused SGD keeps uninitialised memory as its momentum (torch 2.13).
    fused = _fusible(parameters) and recipe.loss_scale != "dynamic"
    decay = recipe.weight_decay
    return torch.optim.SGD(parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=decay, fused=fused)


def adam(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam; weight decay, if any, is an L2 term in the gradient."""
    return torch.optim.Adam(**_adam_options(model, recipe))


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(**_adam_options(model, recipe))


def adamw_on_matrices(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW as language models use it: betas 0.9 and 0.95, weight decay on matrices, none on biases and norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    fused = _fusible(parameters)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.95), eps=recipe.adam_eps, fused=fused)


def _adam_options(model: nn.Module, recipe: Recipe) -> dict:
    parameters = list(model.parameters())
    options = {"lr": recipe.lr, "eps": recipe.adam_eps, "weight_decay": recipe.weight_decay}
    return options | {"params": parameters, "fused": _fusible(parameters)}


def _fusible(parameters: list[nn.Parameter]) -> bool:
    """Fused optimizers are faster (Adam takes 1.1 of plain SGD's time instead of 1.4), but only correct in float32.

    With torch 2.13 on a CPU, fused SGD hardly changes 16-bit weights (11 % accuracy after 60 steps, unfused 90 %).
    """
    return all(parameter.dtype == torch.float32 for parameter in parameters)


OPTIMIZERS = (sgd, adam, adamw, adamw_on_matrices)

# --- schedule(step, recipe) -> learning rate ------------------------------------------------------
# `schedule_steps` is the number of steps that the schedule is made for; None means all steps of the run.


def constant(step: int, recipe: Recipe) -> float:
    """The same learning rate at every step."""
    return recipe.lr


def cosine(step: int, recipe: Recipe) -> float:
    """Cosine decay to 0 at `schedule_steps`, then 0."""
    return cosine_unclamped(min(step, _span(recipe)), recipe)


def cosine_unclamped(step: int, recipe: Recipe) -> float:
    """Cosine decay that rises again after `schedule_steps`, as torch's CosineAnnealingLR does."""
    return recipe.lr * (1 + math.cos(math.pi * step / _span(recipe))) / 2


def warmup_cosine(step: int, recipe: Recipe) -> float:
    """Linear warm-up over `warmup` steps, then cosine decay to 0."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup  # step + 1: a first step at LR 0 would be wasted
    after = (step - recipe.warmup) / max(1, _span(recipe) - recipe.warmup)
    return recipe.lr * (1 + math.cos(math.pi * min(1.0, after))) / 2


def warmup_cosine_to_tenth(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then cosine decay to a tenth of the peak, as language models are trained."""
    if step < recipe.warmup:
        return warmup_cosine(step, recipe)
    return 0.1 * recipe.lr + 0.9 * warmup_cosine(step, recipe)


def one_cycle(step: int, recipe: Recipe) -> float:
    """Up from lr/25 over the first 30 %, then down to lr/250000 (shape and defaults of torch's OneCycleLR)."""
    position, top = min(1.0, step / max(1, _span(recipe) - 1)), 0.3
    low, final = recipe.lr / 25, recipe.lr / 25e4
    start, end, share = (
        (low, recipe.lr, position / top) if position < top else (recipe.lr, final, (position - top) / (1 - top))
    )
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def exponential(step: int, recipe: Recipe) -> float:
    """Exponential decay: multiplied by `decay` after each epoch."""
    steps_per_epoch = max(1, recipe.samples // recipe.batch_size)  # full batches only, as in `shuffled`
    return recipe.lr * recipe.decay ** (step // steps_per_epoch)


SCHEDULES = (constant, cosine, cosine_unclamped, warmup_cosine, warmup_cosine_to_tenth, one_cycle, exponential)


def _span(recipe: Recipe) -> int:
    return recipe.schedule_steps or recipe.steps


# --- batches(split, recipe, generator) -> endless (x, y) ------------------------------------------


def shuffled(split: Split, recipe: Recipe, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """A new random order each epoch, full batches only; augmented as the recipe says."""
    augment = augmenter(recipe.augment)
    count = len(split.y)
    size = min(recipe.batch_size, count)
    while True:
        order = torch.randperm(count, generator=generator).to(split.y.device)
        for batch in order[: count - count % size].split(size):
            x, y = split.x.index_select(0, batch), split.y.index_select(0, batch)
            yield (augment(x) if augment else x), y


BATCHES = (shuffled,)

# --- step(training, x, y) -------------------------------------------------------------------------


def plain_step(training: TrainingState, x: Tensor, y: Tensor) -> None:
    """One training step, in the standard order."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)  # for the instruments: gradients are ready, weights not yet changed
    training.clip()
    training.update()


def skipping_step(training: TrainingState, x: Tensor, y: Tensor) -> None:
    """The plain step, but without an update if the gradient norm is above ten times its recent median."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)
    usual = vars(training).setdefault("usual_gradients", deque(maxlen=100))
    gradients = [weight.grad for weight in training.weights() if weight.grad is not None]
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if len(usual) < 10 or norm <= 10 * median(usual):
        usual.append(norm)
        training.clip()
        training.update()


STEPS = (plain_step, skipping_step)

# --- evaluate(training, split) -> {"loss": ..., "accuracy": ..., "confidence": ...} ---------------


@torch.no_grad()
def plain_evaluate(training: TrainingState, split: Split) -> dict[str, Tensor | float]:
    """Mean loss, accuracy and confidence over a split, in eval mode, in batches of 1000."""
    training.model.eval()
    results = [score(training, x, y) for x, y in zip(split.x.split(1000), split.y.split(1000), strict=True)]
    training.model.train()
    return {name: sum(each[name] for each in results) / len(split.y) for name in results[0]}


def score(training: TrainingState, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Loss, number of correct predictions and confidence of one batch, each summed over its samples."""
    outputs = training.forward(x)
    return {
        "loss": training.recipe.loss(outputs, y).float() * len(y),
        "accuracy": (outputs.argmax(1) == y).sum(),
        "confidence": outputs.float().softmax(1).amax(1).sum(),
    }


EVALUATIONS = (plain_evaluate,)
