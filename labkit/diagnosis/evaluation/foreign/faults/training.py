"""Faults in learning rate, schedule and the code of the loop."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from labkit.diagnosis.evaluation.foreign.operators import (
    change_groups,
    change_loss,
    exchange,
    fault,
    modules_of,
    need,
    override_step,
    trained_layers,
)
from labkit.diagnosis.evaluation.foreign.setup import Setup

# --- learning rate, schedule, optimizer ---------------------------------------------------------------

TOO_HIGH = ("learning_rate_too_high", "learning_rate_too_high_late", "dead_relu_by_learning_rate")
TOO_LOW = ("learning_rate_too_low", "learning_rate_left_low")


@fault("learning rate", *TOO_HIGH)
def rate_times_100(s: Setup) -> None:
    """The learning rate is 100 times too high."""
    change_groups(s, lr=lambda lr: 100 * lr)


@fault("learning rate", *TOO_HIGH)
def rate_times_20(s: Setup) -> None:
    """The learning rate is 20 times too high."""
    change_groups(s, lr=lambda lr: 20 * lr)


@fault("learning rate", *TOO_LOW)
def rate_times_1e_4(s: Setup) -> None:
    """The learning rate is 10,000 times too low."""
    change_groups(s, lr=lambda lr: 1e-4 * lr)


@fault("learning rate", *TOO_LOW)
def rate_times_3e_2(s: Setup) -> None:
    """The learning rate is 33 times too low."""
    change_groups(s, lr=lambda lr: 0.03 * lr)


@fault("learning rate", "scheduler_stepped_per_batch", "schedule_too_short")
def scheduler_per_batch(s: Setup) -> None:
    """A scheduler meant for epochs is stepped after each batch."""
    step_per_batch(s, [torch.optim.lr_scheduler.ExponentialLR(each, 0.85) for each in s.optimizers])


def step_per_batch(s: Setup, schedules: Sequence[Any]) -> None:
    """Step these schedules, one for each optimizer, after each batch."""
    for each, schedule in zip(s.optimizers, schedules, strict=True):
        step = each.step

        def changed(*args: Any, _step: Callable = step, _schedule: Any = schedule, **options: Any) -> Any:
            result = _step(*args, **options)
            _schedule.step()
            return result

        override_step(each, changed)


@fault("learning rate", "warmup_too_long", *TOO_LOW)
def warmup_for_another_data_set(s: Setup) -> None:
    """The warm-up was copied from a much larger data set: it would take 50 times as many steps as there are."""
    needed = 50 * s.epochs * s.per_epoch
    schedulers = torch.optim.lr_scheduler
    s.scheduler = None
    step_per_batch(s, [schedulers.LambdaLR(each, lambda at: (at + 1) / needed) for each in s.optimizers])


@fault("learning rate", "training_not_finished", *TOO_LOW)
def all_data_in_one_batch(s: Setup) -> None:
    """The data are not divided into batches: one update per epoch, for as many epochs as before."""
    s.batch_size, s.per_epoch = len(s.train[-1]), 1


@fault("learning rate", "training_not_finished")
def stopped_early(s: Setup) -> None:
    """Training stops after a twentieth of the steps it needs."""
    steps = max(8, s.epochs * s.per_epoch // 20)
    s.epochs, s.per_epoch = 2, steps // 2


@fault("learning rate", "momentum_too_high", *TOO_HIGH)
def momentum_near_one(s: Setup) -> None:
    """Momentum is 0.999 and not 0.9."""
    need(any(group.get("momentum") for each in s.optimizers for group in each.param_groups))
    change_groups(s, momentum=0.999)


# --- code ---------------------------------------------------------------------------------------------


@fault("code", "zero_grad_missing")
def no_zero_grad(s: Setup) -> None:
    """The gradients are never cleared."""
    for each in s.optimizers:
        each.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
    s.model.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]


@fault("code", "step_missing")
def no_step(s: Setup) -> None:
    """optimizer.step() is never called."""
    for each in s.optimizers:  # a closure is called all the same: it is what the loop calls instead
        override_step(each, lambda closure=None: closure() if closure else None)


@fault("code", "stale_optimizer")
def new_head_after_optimizer(s: Setup) -> tuple[str, ...]:
    """The last layer is exchanged after the optimizer was built: nobody updates the new one."""
    name, layer = trained_layers(s)[-1]
    new = copy.deepcopy(layer)
    need(hasattr(new, "reset_parameters"))
    new.reset_parameters()
    exchange(s.model, name, new)
    return (name,)


@fault("code", "stale_optimizer")
def optimizer_of_a_copy(s: Setup) -> None:
    """The optimizer was built for another copy of the net."""
    s.model = copy.deepcopy(s.model)


@fault("code", "frozen_layers")
def frozen_body(s: Setup) -> tuple[str, ...]:
    """All layers but the last were left frozen by an earlier experiment."""
    layers = trained_layers(s)[:-1]
    need(layers)
    for _, layer in layers:
        layer.requires_grad_(False)
    return tuple(name for name, _ in layers)


@fault("code", "silently_detached_loss", "detached_loss")
def detached(s: Setup) -> None:
    """The loss is computed from a copy of the outputs that has no graph."""
    change_loss(s, lambda loss: loss.detach().requires_grad_())


@fault("code", "detached_loss")
def detached_outputs(s: Setup) -> None:
    """The outputs are detached before the loss: backward() raises an error."""
    change_loss(s, lambda loss: loss.detach())


@fault("code", "gradient_ascent")
def flipped_sign(s: Setup) -> None:
    """The loss has the wrong sign: training maximises the error."""
    change_loss(s, lambda loss: -loss)


@fault("code", "gradient_ascent")
def maximising(s: Setup) -> None:
    """The optimizer maximises."""
    need(all("maximize" in group for each in s.optimizers for group in each.param_groups))
    change_groups(s, maximize=True)


@fault("code", "summed_loss")
def summed(s: Setup) -> None:
    """The loss is summed over the samples, and not averaged."""
    need(any(isinstance(each, torch.optim.SGD) for each in s.optimizers))
    size = s.batch_size
    change_loss(s, lambda loss: size * loss)


@fault("code", "loss_scaled_down", *TOO_LOW)
def divided_twice(s: Setup) -> None:
    """The loss is divided by the number of samples although it is a mean already."""
    need(any(isinstance(each, torch.optim.SGD) for each in s.optimizers))
    size = len(s.train[-1])
    change_loss(s, lambda loss: loss / size)


@fault("code", "dropout_at_validation", "batch_norm_in_train_mode_at_validation")
def validated_in_train_mode(s: Setup) -> None:
    """The net is validated in train mode, with dropout."""
    drops = modules_of(s, nn.Dropout)
    need(drops)
    for _, each in drops:
        each.p = 0.5  # type: ignore[assignment]
    s.model.eval = lambda: s.model  # type: ignore[method-assign]


@fault("code", "batch_norm_statistics_frozen")
def batch_norm_momentum_zero(s: Setup) -> tuple[str, ...]:
    """The running statistics of batch norm never change from 0 and 1."""
    norms = modules_of(s, nn.BatchNorm1d, nn.BatchNorm2d)
    need(norms)
    for _, each in norms:
        each.momentum = 0.0  # type: ignore[assignment]
    return tuple(name for name, _ in norms)


@fault("code", "tiny_batch_norm", "batch_too_small")
def two_samples_for_batch_norm(s: Setup) -> None:
    """Batch norm with two samples per batch."""
    need(modules_of(s, nn.BatchNorm1d))
    s.batch_size = 2
