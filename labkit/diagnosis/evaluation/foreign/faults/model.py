"""Faults in architecture, weights and gradients."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from labkit.diagnosis.evaluation.foreign.operators import (
    ACTIVATIONS,
    DoesNotApply,
    before_update,
    change_groups,
    exchange,
    fault,
    modules_of,
    need,
    trained_layers,
)
from labkit.diagnosis.evaluation.foreign.setup import Setup

# --- architecture -------------------------------------------------------------------------------------


@fault("architecture", "missing_nonlinearity")
def no_activations(s: Setup) -> None:
    """The layers follow each other without an activation."""
    found = modules_of(s, *ACTIVATIONS)
    need(found)
    for name, _ in found:
        exchange(s.model, name, nn.Identity())


def replace_hidden_layer(s: Setup, make: Callable[[nn.Linear], nn.Module]) -> str:
    """Put something else in the place of the first hidden linear layer, and hand its weights to the optimizer."""
    hidden = [(name, layer) for name, layer in trained_layers(s)[:-1] if type(layer) is nn.Linear]
    need(hidden)
    name, layer = hidden[0]
    known = {id(each) for each in s.model.parameters()}
    exchange(s.model, name, make(layer))
    new = [each for each in s.model.parameters() if id(each) not in known]
    if new:
        last, s.scheduler = s.optimizers[-1], None
        last.add_param_group({"params": new, "lr": last.param_groups[0]["lr"]})
    return name


@fault("architecture", "vanishing_gradients", "plain_net_too_deep")
def twelve_sigmoid_layers(s: Setup) -> None:
    """Twelve more hidden layers with sigmoids, without shortcuts."""

    def deep(layer: nn.Linear) -> nn.Module:
        size = layer.out_features
        return nn.Sequential(layer, *(each for _ in range(12) for each in (nn.Linear(size, size), nn.Sigmoid())))

    replace_hidden_layer(s, deep)


@fault("architecture", "underfit")
def bottleneck_of_one(s: Setup) -> tuple[str, ...]:
    """Everything passes through a single unit."""
    made = replace_hidden_layer(
        s, lambda layer: nn.Sequential(nn.Linear(layer.in_features, 1), nn.Linear(1, layer.out_features))
    )
    return (made,)


@fault("code", "unregistered_layers")
def layer_in_a_list(s: Setup) -> None:
    """A hidden layer is kept in a plain list: it is in the forward pass, and in no list of parameters."""

    class Hidden(nn.Module):
        def __init__(self, layer: nn.Module):
            super().__init__()
            self.layers = [layer]

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](x)

    replace_hidden_layer(s, Hidden)
    registered = {id(each) for each in s.model.parameters()}
    for each in s.optimizers:
        for group in each.param_groups:
            group["params"] = [weight for weight in group["params"] if id(weight) in registered]


@fault("architecture", "too_much_dropout")
def dropout_95(s: Setup) -> tuple[str, ...]:
    """Dropout with p = 0.95."""
    drops = modules_of(s, nn.Dropout)
    need(drops)
    for _, each in drops:
        each.p = 0.95  # type: ignore[assignment]
    return ()


# --- weights ------------------------------------------------------------------------------------------


@fault("weights", "zero_init")
def all_weights_zero(s: Setup) -> None:
    """All weights and biases start at zero."""
    need(not any(map(is_parametrized, s.model.modules())))  # weight norm would divide 0 by 0
    with torch.no_grad():
        for each in s.model.parameters():
            if each.requires_grad:
                each.zero_()


@fault("weights", "symmetric_init")
def all_weights_alike(s: Setup) -> None:
    """All weights of the net have the same value."""
    with torch.no_grad():
        for _, layer in trained_layers(s):
            for each in layer.parameters():
                each.fill_(0.02)


@fault("weights", "init_too_large", "exploding_gradients", "saturated_units", "exploding_recurrent_gradients")
def weights_times_20(s: Setup) -> None:
    """The weights start 20 times too large."""
    with torch.no_grad():
        for _, layer in trained_layers(s):
            for each in layer.parameters():
                each.mul_(20.0)


@fault("weights", "head_init_too_large", "init_too_large")
def head_times_100(s: Setup) -> tuple[str, ...]:
    """The weights of the last layer start 100 times too large."""
    name, layer = trained_layers(s)[-1]
    with torch.no_grad():
        for each in layer.parameters():
            each.mul_(100.0)
    return (name,)


@fault("weights", "weight_collapse", "penalty_too_strong")
def weight_decay_strong(s: Setup) -> None:
    """Weight decay is far too strong."""
    change_groups(s, weight_decay=2.0)


@fault("weights", "runaway_weights")
def weight_decay_negative(s: Setup) -> None:
    """Weight decay has the wrong sign: the weights grow."""
    change_groups(s, weight_decay=-0.5)


@fault("weights", "dead_relu")
def dead_units(s: Setup) -> tuple[str, ...]:
    """The biases before the first ReLU are so low that no unit is ever active."""
    named = list(s.model.named_modules())
    before = None
    for name, module in named:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and module.bias is not None:
            before = name, module
        if isinstance(module, nn.ReLU) and before and before[1].bias.requires_grad:
            with torch.no_grad():
                before[1].bias.sub_(100.0)
            return (before[0], name)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            before = None
    raise DoesNotApply


@fault("gradients", "clipping_too_tight")
def clipped_to_1e_4(s: Setup) -> None:
    """Gradients are clipped to a norm of 0.0001."""
    weights = [each for each in s.model.parameters() if each.requires_grad]
    before_update(s, lambda: nn.utils.clip_grad_norm_(weights, 1e-4))


@fault("gradients", "value_clipping_too_tight", "clipping_too_tight")
def values_clipped_to_1e_5(s: Setup) -> None:
    """Each value of the gradients is clipped to 0.00001."""
    weights = [each for each in s.model.parameters() if each.requires_grad]
    before_update(s, lambda: nn.utils.clip_grad_value_(weights, 1e-5))
