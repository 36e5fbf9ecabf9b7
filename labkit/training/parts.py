"""The plain parts of a run: losses, optimizers, schedules, batches, the step and the evaluation.

Each is an ordinary function. A failure mode that is a code bug brings its own, in its own file.
"""

import math
from collections import deque
from statistics import median

import torch
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from labkit.training.data import augmenter

# --- loss(outputs, targets) -> scalar -------------------------------------------------------------


def mean_squared_error(outputs, targets):
    """Squared distance to the one-hot label, averaged: classification treated as regression."""
    return mse_loss(outputs, one_hot(targets, outputs.shape[1]).to(outputs.dtype))


LOSSES = (cross_entropy, mean_squared_error)

# --- optimizer(model, recipe) -> torch optimizer --------------------------------------------------


def sgd(model, recipe):
    """Stochastic gradient descent with momentum."""
    parameters = list(model.parameters())
    # When GradScaler skips the first step, fused SGD keeps uninitialised memory as its momentum (torch 2.13).
    fused = _fusible(parameters) and recipe.loss_scale != "dynamic"
    options = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay, "fused": fused}
    return torch.optim.SGD(parameters, lr=recipe.lr, **options)


def adam(model, recipe):
    """Adam; weight decay, where asked for, is the L2 term inside the gradient."""
    return torch.optim.Adam(**_adam_options(model, recipe))


def adamw(model, recipe):
    """Adam with decoupled weight decay."""
    return torch.optim.AdamW(**_adam_options(model, recipe))


def _adam_options(model, recipe) -> dict:
    parameters = list(model.parameters())
    options = {"lr": recipe.lr, "eps": recipe.adam_eps, "weight_decay": recipe.weight_decay}
    return options | {"params": parameters, "fused": _fusible(parameters)}


def _fusible(parameters) -> bool:
    """Fused optimizers are faster (Adam 1.1 of plain SGD's time instead of 1.4), but only right in float32:

    with torch 2.13 on a CPU, fused SGD hardly moves 16-bit weights (11 % after 60 steps, unfused 90 %).
    """
    return all(parameter.dtype == torch.float32 for parameter in parameters)


OPTIMIZERS = (sgd, adam, adamw)

# --- schedule(step, recipe) -> learning rate ------------------------------------------------------
# `schedule_steps` is the length the schedule believes the run has; None means it is told the truth.


def constant(step, recipe):
    """The same learning rate at every step."""
    return recipe.lr


def cosine(step, recipe):
    """Half a cosine down to 0 at `schedule_steps`, and 0 ever after."""
    return cosine_unclamped(min(step, _span(recipe)), recipe)


def cosine_unclamped(step, recipe):
    """The same cosine, which climbs again after `schedule_steps`, as torch's CosineAnnealingLR does."""
    return recipe.lr * (1 + math.cos(math.pi * step / _span(recipe))) / 2


def warmup_cosine(step, recipe):
    """A linear rise over `warmup` steps, then half a cosine down to 0, clamped."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup  # step + 1: a first step at LR 0 would be wasted
    after = (step - recipe.warmup) / max(1, _span(recipe) - recipe.warmup)
    return recipe.lr * (1 + math.cos(math.pi * min(1.0, after))) / 2


def one_cycle(step, recipe):
    """Up from lr/25 over the first 30 %, then down to lr/250000 (the shape and defaults of OneCycleLR)."""
    position, top = min(1.0, step / max(1, _span(recipe) - 1)), 0.3
    low, final = recipe.lr / 25, recipe.lr / 25e4
    start, end, share = (
        (low, recipe.lr, position / top) if position < top else (recipe.lr, final, (position - top) / (1 - top))
    )
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def exponential(step, recipe):
    """Times `decay` after each epoch."""
    steps_per_epoch = max(1, recipe.samples // recipe.batch_size)  # whole batches only, as `shuffled` deals them
    return recipe.lr * recipe.decay ** (step // steps_per_epoch)


SCHEDULES = (constant, cosine, cosine_unclamped, warmup_cosine, one_cycle, exponential)


def _span(recipe) -> int:
    return recipe.schedule_steps or recipe.steps


# --- batches(split, recipe, generator) -> endless (x, y) ------------------------------------------


def shuffled(split, recipe, generator):
    """A new random order each epoch, whole batches only; augmented where the recipe asks."""
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


def plain_step(training, x, y) -> None:
    """One step of training, in the order every healthy loop has."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)  # the one moment: gradients are ready, weights not yet changed
    training.clip()
    training.update()


def skipping_step(training, x, y) -> None:
    """The plain step, but a batch whose gradient is ten times the usual one changes nothing."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.backward(loss)
    training.look(loss, x, y)
    usual = vars(training).setdefault("usual_gradients", deque(maxlen=100))
    norm = float(torch.nn.utils.get_total_norm([weight.grad for weight in training.weights()]))
    if len(usual) < 10 or norm <= 10 * median(usual):
        usual.append(norm)
        training.clip()
        training.update()


STEPS = (plain_step, skipping_step)

# --- evaluate(training, split) -> {"loss": ..., "accuracy": ..., "confidence": ...} ---------------


@torch.no_grad()
def plain_evaluate(training, split) -> dict:
    """Mean loss, accuracy and confidence over a split, in eval mode, in batches of 1000."""
    training.model.eval()
    results = [score(training, x, y) for x, y in zip(split.x.split(1000), split.y.split(1000), strict=True)]
    training.model.train()
    return {name: sum(each[name] for each in results) / len(split.y) for name in results[0]}


def score(training, x, y) -> dict:
    """Loss, right answers and confidence of one batch, each added up over its samples."""
    outputs = training.forward(x)
    return {
        "loss": training.recipe.loss(outputs, y).float() * len(y),
        "accuracy": (outputs.argmax(1) == y).sum(),
        "confidence": outputs.float().softmax(1).amax(1).sum(),
    }


EVALUATIONS = (plain_evaluate,)
