"""Look into a net and leave it as it was: weights, buffers, gradients, modes and random numbers."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


@contextlib.contextmanager
def unchanged(model: nn.Module, optimizer=None):
    """Whatever happens inside, afterwards model, gradients, optimizer, modes and random numbers are as before."""
    weights = [(weight, weight.detach().clone(), weight.grad) for weight in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict()) if optimizer else None
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    for weight, _, _ in weights:
        weight.grad = None  # the caller's gradients are kept aside, not overwritten
    with torch.random.fork_rng(devices), buffers_kept(model), modes_kept(model):
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before, gradient in weights:
                    weight.copy_(before)
                    weight.grad = gradient
            if optimizer:
                optimizer.load_state_dict(state)


@contextlib.contextmanager
def replaying(model: nn.Module, device: torch.device):
    """For a forward pass that leaves no trace: no graph, no random numbers used up, buffers restored."""
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []), buffers_kept(model):
        yield


@contextlib.contextmanager
def evaluating(model: nn.Module):
    """Eval mode inside; afterwards every module is in the mode it was in."""
    with modes_kept(model):
        model.eval()
        yield


@contextlib.contextmanager
def modes_kept(model: nn.Module):
    """Afterwards every module is in the mode it was in: train or eval."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def buffers_kept(model: nn.Module):
    """Afterwards every buffer holds what it held: the running statistics of batch norm, for instance."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


@contextlib.contextmanager
def hooked(modules: dict[str, nn.Module], look: Callable[[str, tuple, Any], None]):
    """Inside, `look(name, inputs, output)` is called after each forward pass of each module."""

    def hook(name: str):
        return lambda _, inputs, output: look(name, inputs, first_output(output))

    hooks = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


@contextlib.contextmanager
def captured(modules: dict[str, nn.Module]):
    """The outputs of some modules during the next forward pass, by name."""
    outputs: dict[str, torch.Tensor] = {}
    with hooked(modules, lambda name, _, output: outputs.__setitem__(name, output)):
        yield outputs


def first_output(output):
    """The outputs of a module; a recurrent one returns (outputs, state)."""
    return output[0] if isinstance(output, tuple) else output
