"""Fault operators and what they share: each changes a program just before its loop starts, as a bug would.

An operator lists the names that count as correct, and returns the places where the fault is, if it is in some layers
only. Some names may not be in the catalogue yet (`INTENDED`): their cases count as not named until the mode is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.diagnosis.evaluation.foreign.setup import Setup

# Modes that the catalogue may not have yet. When one is added under another name, the name is changed here.
INTENDED = ("plain_net_too_deep", "augmentation_changes_meaning", "embeddings_collapse")


class DoesNotApply(Exception):
    """The program has no piece that this fault could be in."""


@dataclass(frozen=True)
class Fault:
    """One operator: what it does to a setup, and which names are correct."""

    name: str
    family: str
    accepted: tuple[str, ...]
    apply: Callable[[Setup], tuple[str, ...] | None]

    def __call__(self, setup: Setup) -> tuple[str, ...]:
        """Break the setup; returns the places of the fault, none where it is everywhere."""
        return self.apply(setup) or ()


def fault(family: str, *accepted: str) -> Callable[[Callable[[Setup], tuple[str, ...] | None]], Fault]:
    """Make a Fault of the function that applies it; it has the function's name."""

    def made(apply: Callable[[Setup], tuple[str, ...] | None]) -> Fault:
        return Fault(apply.__name__, family, accepted, apply)

    return made


# --- finding the pieces -------------------------------------------------------------------------------


def need(condition: object) -> None:
    if not condition:
        raise DoesNotApply


def trained_layers(s: Setup) -> list[tuple[str, nn.Module]]:
    """The layers with trainable weight matrices, in the order of their definition."""
    convolutions = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
    kinds = (nn.Linear, *convolutions, nn.LSTM, nn.GRU, nn.Embedding, nn.EmbeddingBag)
    named = [(name, module) for name, module in s.model.named_modules() if isinstance(module, kinds)]
    return [(name, module) for name, module in named if all(each.requires_grad for each in module.parameters())]


def modules_of(s: Setup, *kinds: type) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in s.model.named_modules() if isinstance(module, kinds)]


def exchange(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put a module in the place of another, by its dotted name."""
    *path, last = name.split(".")
    owner: Any = model.get_submodule(".".join(path))
    if isinstance(owner, nn.Sequential | nn.ModuleList):
        owner[int(last)] = new
    else:
        setattr(owner, last, new)


ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Mish, nn.Hardswish, nn.PReLU)


def on_outputs(s: Setup, change: nn.Module) -> None:
    """Put an activation behind the outputs, as a part of the net."""
    if isinstance(s.model, nn.Sequential):
        s.model.append(change)
        return
    s.model.add_module("final", change)

    def applied(_: nn.Module, __: Any, outputs: Any) -> Any:
        if isinstance(outputs, dict):
            return {**outputs, "logits": change(outputs["logits"])}
        if isinstance(outputs, tuple):
            return (change(outputs[0]), *outputs[1:])
        if is_dataclass(outputs) and not isinstance(outputs, type):
            return replace(outputs, **{fields(outputs)[0].name: change(logits_of(outputs))})
        return change(outputs)

    s.model.register_forward_hook(applied)


def logits_of(outputs: Any) -> Tensor:
    if isinstance(outputs, dict):
        return outputs["logits"]
    if is_dataclass(outputs):
        return getattr(outputs, fields(outputs)[0].name)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def scaled(data: list[Tensor], by: Callable[[Tensor], Tensor], targets: bool = False) -> None:
    """Change the floating-point inputs, or the targets."""
    for index in range(len(data) - 1) if not targets else (-1,):
        if data[index].is_floating_point():
            data[index] = by(data[index])


def has_float_inputs(s: Setup) -> bool:
    return s.train[0].is_floating_point()


def before_update(s: Setup, action: Callable[[], object]) -> None:
    """Do something before each optimizer step, in the user's code: the optimizer then sees its result."""
    for each in s.optimizers:
        step = each.step

        def changed(closure: Callable | None = None, _step: Callable = step) -> Any:
            if closure is not None:  # its gradients are ready when it returns
                return _step(lambda: (closure(), action())[0])
            action()
            return _step()

        override_step(each, changed)


def override_step(optimizer: torch.optim.Optimizer, step: Callable) -> None:
    """Put another function in the place of `optimizer.step`."""
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # or schedulers would warn about the new function
    optimizer.step = step  # type: ignore[method-assign]


def change_groups(s: Setup, **values: Any) -> None:
    for each in s.optimizers:
        for group in each.param_groups:
            group.update({name: value(group[name]) if callable(value) else value for name, value in values.items()})
    if s.scheduler and "lr" in values:
        s.scheduler.base_lrs = [values["lr"](lr) for lr in s.scheduler.base_lrs]


def change_loss(s: Setup, change: Callable[[Tensor], Tensor]) -> None:
    loss = s.loss
    s.loss = lambda outputs, targets: change(loss(outputs, targets))


def has_classes(s: Setup) -> bool:
    return s.kind in ("classes", "tokens", "pixels")


def yes_no(s: Setup) -> bool:
    return s.kind in ("binary", "multilabel")


def numbers(s: Setup) -> bool:
    return s.kind in ("regression", "reconstruction")
