"""Faults of loops with two optimizers: a generator and its critic, an actor and a critic, an embedding and the rest."""

from typing import Any

import torch
from torch import Tensor

from labkit.diagnosis.evaluation.foreign.faults.training import TOO_HIGH, TOO_LOW
from labkit.diagnosis.evaluation.foreign.operators import fault, need, override_step, trained_layers
from labkit.diagnosis.evaluation.foreign.setup import Setup


def both(s: Setup) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """The two optimizers, each with weights of its own; they are needed. The first one has the net that is used."""
    need(len(s.optimizers) == 2)
    first, second = s.optimizers
    need(not set(map(id, weights_of(first))) & set(map(id, weights_of(second))))
    return first, second


def weights_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def layers_of(s: Setup, optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """The layers whose weights this optimizer has."""
    held = set(map(id, weights_of(optimizer)))
    return tuple(name for name, layer in trained_layers(s) if any(id(each) in held for each in layer.parameters()))


def change_rate(optimizer: torch.optim.Optimizer, by: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= by


@fault("two optimizers", *TOO_LOW)
def first_net_too_slow(s: Setup) -> tuple[str, ...]:
    """The learning rate of the first of two nets is 3,000 times too low, that of the other one is not."""
    first, _ = both(s)
    change_rate(first, 1 / 3000)
    s.scheduler = None  # it would set the rate again
    return layers_of(s, first)


@fault("two optimizers", *TOO_HIGH)
def second_net_too_fast(s: Setup) -> tuple[str, ...]:
    """The learning rate of the second of two nets is 100 times too high: the first one cannot follow."""
    _, second = both(s)
    change_rate(second, 100)
    return layers_of(s, second)


@fault("two optimizers", "step_missing", "stale_optimizer")
def first_net_never_updated(s: Setup) -> tuple[str, ...]:
    """One of two optimizers never takes a step."""
    first, _ = both(s)
    override_step(first, lambda closure=None: closure() if closure else None)
    return layers_of(s, first)


@fault("two optimizers", "stale_optimizer", "step_missing")
def same_weights_in_both_optimizers(s: Setup) -> tuple[str, ...]:
    """Both optimizers were given the weights of the second net: nobody updates the first one."""
    first, second = both(s)
    left = layers_of(s, first)
    first.param_groups[0]["params"] = weights_of(second)
    del first.param_groups[1:]
    return left


@fault("two optimizers", "frozen_layers", "silently_detached_loss")
def first_net_detached(s: Setup) -> tuple[str, ...]:
    """What the first net gives to the rest is detached, and no gradient reaches it."""
    first, _ = both(s)
    held = set(map(id, weights_of(first)))
    own = [child for child in s.model.children() if all(id(each) in held for each in child.parameters())]
    need(own)
    for child in own:
        child.register_forward_hook(lambda _, __, outputs: detached(outputs))
    return layers_of(s, first)


def detached(outputs: Any) -> Any:
    if isinstance(outputs, tuple):
        return tuple(map(detached, outputs))
    return outputs.detach() if isinstance(outputs, Tensor) else outputs


@fault("two optimizers", "zero_grad_missing")
def first_net_never_cleared(s: Setup) -> tuple[str, ...]:
    """The gradients of the first of two nets are never cleared, those of the second are."""
    first, second = both(s)
    first.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
    s.model.zero_grad = lambda *_, **__: second.zero_grad()  # type: ignore[method-assign]
    return layers_of(s, first)


@fault("two optimizers", "zero_grad_missing")
def second_net_never_cleared(s: Setup) -> tuple[str, ...]:
    """The gradients of the second net are never cleared: those of the first one's loss are left in them, too."""
    first, second = both(s)
    second.zero_grad = lambda *_, **__: None  # type: ignore[method-assign]
    s.model.zero_grad = lambda *_, **__: first.zero_grad()  # type: ignore[method-assign]
    return layers_of(s, second)
