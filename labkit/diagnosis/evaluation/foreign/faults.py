"""Fault operators: each changes the pieces of a program just before its loop starts, as a bug in its code would.

An operator lists the names that count as correct, and returns the places where the fault is, if it is in some layers
only. Some names may not be in the catalogue yet (`INTENDED`): their cases count as not named until the mode is there.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.setup import Setup, generator

# Modes that the catalogue may not have yet. When one is added under another name, the name is changed here.
INTENDED = (
    "output_activation", "softmax_over_wrong_axis", "loss_mismatch", "loss_broadcast", "missing_nonlinearity",
    "gradient_ascent", "targets_not_scaled", "penalty_too_strong", "batch_norm_never_updated", "plain_net_too_deep",
    "training_not_finished", "inputs_too_small", "labels_differ_at_validation", "momentum_too_high",
    "columns_differ_at_validation", "loss_scaled_down", "class_weights_out_of_proportion",
)  # fmt: skip


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


FAULTS: dict[str, Fault] = {}


def fault(family: str, *accepted: str) -> Callable[[Callable], Callable]:
    """Register an operator under the name of its function; the first line of its docstring says what it does."""

    def registered(apply: Callable[[Setup], tuple[str, ...] | None]) -> Callable:
        FAULTS[apply.__name__] = Fault(apply.__name__, family, accepted, apply)
        return apply

    return registered


# --- finding the pieces -------------------------------------------------------------------------------


def need(condition: object) -> None:
    if not condition:
        raise DoesNotApply


def trained_layers(s: Setup) -> list[tuple[str, nn.Module]]:
    """The layers with trainable weight matrices, in the order of their definition."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM, nn.GRU, nn.Embedding, nn.EmbeddingBag)
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


ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU)


def on_outputs(s: Setup, change: nn.Module) -> None:
    """Put an activation behind the outputs, as a part of the net."""
    s.model.add_module("final", change)

    def applied(_: nn.Module, __: Any, outputs: Any) -> Any:
        if isinstance(outputs, dict):
            return {**outputs, "logits": change(outputs["logits"])}
        if isinstance(outputs, tuple):
            return (change(outputs[0]), *outputs[1:])
        return change(outputs)

    s.model.register_forward_hook(applied)


def logits_of(outputs: Any) -> Tensor:
    if isinstance(outputs, dict):
        return outputs["logits"]
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

        def changed(*args: Any, _step: Callable = step, **options: Any) -> Any:
            action()
            return _step(*args, **options)

        each.step = changed  # type: ignore[method-assign]


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
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.85) for each in s.optimizers]
    for each, schedule in zip(s.optimizers, schedules, strict=True):
        step = each.step

        def changed(*args: Any, _step: Callable = step, _schedule: Any = schedule, **options: Any) -> Any:
            result = _step(*args, **options)
            _schedule.step()
            return result

        changed._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # torch would warn about the new function
        each.step = changed  # type: ignore[method-assign]


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
    for each in s.optimizers:
        each.step = lambda *_, **__: None  # type: ignore[method-assign]


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


@fault("code", "eval_mode_in_training")
def stays_in_eval_mode(s: Setup) -> None:
    """After the first validation the net is never put back into train mode."""
    need(modules_of(s, nn.BatchNorm1d, nn.BatchNorm2d))
    train = s.model.train
    s.model.train(False)
    s.model.train = lambda mode=True: train(False)  # type: ignore[method-assign]


@fault("code", "dropout_at_validation", "batch_norm_in_train_mode_at_validation")
def validated_in_train_mode(s: Setup) -> None:
    """The net is validated in train mode, with dropout."""
    drops = modules_of(s, nn.Dropout)
    need(drops)
    for _, each in drops:
        each.p = 0.5  # type: ignore[assignment]
    s.model.eval = lambda: s.model  # type: ignore[method-assign]


@fault("code", "batch_norm_never_updated")
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


# --- outputs and loss ---------------------------------------------------------------------------------


@fault("output and loss", "softmax_before_cross_entropy", "output_activation")
def softmax_before_loss(s: Setup) -> None:
    """Softmax at the end of the net, and again in the loss."""
    need(has_classes(s))
    on_outputs(s, nn.Softmax(s.class_axis))


@fault("output and loss", "softmax_over_wrong_axis", "output_activation")
def softmax_over_the_batch(s: Setup) -> None:
    """Softmax over the samples of the batch."""
    need(has_classes(s))
    on_outputs(s, nn.Softmax(0))


@fault("output and loss", "output_activation")
def sigmoid_twice(s: Setup) -> None:
    """Sigmoid at the end of the net, and again in the loss."""
    need(yes_no(s))
    on_outputs(s, nn.Sigmoid())


@fault("output and loss", "softmax_over_wrong_axis", "output_activation")
def softmax_over_one_unit(s: Setup) -> None:
    """Softmax over a single output: always 1."""
    need(s.kind == "binary")

    class Softmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x.reshape(*x.shape, 1), -1).reshape(x.shape)

    on_outputs(s, Softmax())


@fault("output and loss", "output_activation")
def relu_on_outputs(s: Setup) -> None:
    """ReLU behind the last layer."""
    need(s.kind not in ("pairs", "matching"))
    on_outputs(s, nn.ReLU())


@fault("output and loss", "output_activation")
def sigmoid_on_numbers(s: Setup) -> None:
    """Sigmoid behind the last layer of a regression."""
    need(numbers(s))
    on_outputs(s, nn.Sigmoid())


@fault("output and loss", "output_activation")
def tanh_on_numbers(s: Setup) -> None:
    """Tanh behind the last layer of a regression."""
    need(numbers(s))
    on_outputs(s, nn.Tanh())


@fault("output and loss", "loss_mismatch")
def absolute_error_for_classes(s: Setup) -> None:
    """Mean absolute error between softmax outputs and one-hot classes."""
    need(s.kind == "classes")

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        said = logits_of(outputs).softmax(-1)
        return F.l1_loss(said, F.one_hot(targets, said.shape[-1]).float())

    s.loss = loss


@fault("output and loss", "loss_mismatch")
def squared_error_of_class_numbers(s: Setup) -> None:
    """Mean squared error between the largest output and the number of the class."""
    need(s.kind == "classes")
    s.loss = lambda outputs, targets: F.mse_loss(logits_of(outputs).amax(-1), targets.float())


@fault("output and loss", "loss_mismatch")
def cross_entropy_for_numbers(s: Setup) -> None:
    """Binary cross-entropy for targets that are numbers."""
    need(numbers(s))
    s.loss = lambda outputs, targets: F.binary_cross_entropy_with_logits(
        logits_of(outputs).reshape(targets.shape), targets
    )


@fault("output and loss", "loss_broadcast")
def broadcast_in_the_loss(s: Setup) -> None:
    """Outputs of shape (n, 1) against targets of shape (n): every prediction is compared with every target."""
    need(s.kind in ("regression", "binary") and s.train[-1].ndim == 1)
    kind = F.mse_loss if s.kind == "regression" else F.binary_cross_entropy_with_logits

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        columns, rows = torch.broadcast_tensors(logits_of(outputs).reshape(-1, 1), targets)
        return kind(columns, rows)

    s.loss = loss


@fault("output and loss", "targets_not_scaled")
def targets_times_1000(s: Setup) -> None:
    """The targets of a regression are in the thousands."""
    need(s.kind == "regression")
    for data in (s.train, s.val):
        scaled(data, lambda y: 1000 * y + 3000, targets=True)


@fault("output and loss", "targets_not_scaled")
def targets_far_from_zero(s: Setup) -> None:
    """The targets of a regression are years: near 2000."""
    need(s.kind == "regression")
    for data in (s.train, s.val):
        scaled(data, lambda y: 20 * y + 2000, targets=True)


@fault("output and loss", "penalty_too_strong", "weight_collapse")
def strong_penalty(s: Setup) -> None:
    """A penalty on the weights inside the loss that is far too strong."""
    model = s.model
    change_loss(s, lambda loss: loss + 0.3 * sum(each.abs().sum() for each in model.parameters() if each.requires_grad))


@fault("output and loss", "sqrt_at_zero")
def distance_from_the_start(s: Setup) -> None:
    """A penalty with a square root whose argument is 0 at the start."""
    weights = [each for each in s.model.parameters() if each.requires_grad]
    start = [each.detach().clone() for each in weights]

    def penalised(loss: Tensor) -> Tensor:
        away = sum((one - other).pow(2).sum() for one, other in zip(weights, start, strict=True))
        return loss + 1e-3 * torch.as_tensor(away).sqrt()

    change_loss(s, penalised)


@fault("output and loss", "log_of_zero")
def log_of_hard_sigmoid(s: Setup) -> None:
    """The logarithm of a hard sigmoid, which reaches 0 and 1."""
    need(yes_no(s))

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        said = F.hardsigmoid(logits_of(outputs).reshape(targets.shape))
        return -(targets * said.log() + (1 - targets) * (1 - said).log()).mean()

    s.loss = loss


@fault("output and loss", "class_weights_out_of_proportion")
def one_class_weighs_most(s: Setup) -> None:
    """The loss weighs one class a thousand times as much as the others."""
    need(s.kind == "classes")
    weights = torch.full((int(s.train[-1].max()) + 1,), 1e-3)
    weights[0] = 1.0
    s.loss = lambda outputs, targets: F.cross_entropy(logits_of(outputs), targets, weight=weights)


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
    hidden = [(name, layer) for name, layer in trained_layers(s)[:-1] if isinstance(layer, nn.Linear)]
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


# --- data ---------------------------------------------------------------------------------------------


@fault("data", "labels_shuffled", "labels_detached")
def shuffled_labels(s: Setup) -> None:
    """The training targets belong to other inputs."""
    need(s.kind not in ("matching",))
    s.train[-1] = s.train[-1][torch.randperm(len(s.train[-1]), generator=generator(s.seed))]


@fault("data", "labels_shuffled", "labels_detached")
def partners_shuffled(s: Setup) -> None:
    """Of pairs that belong together one side is shuffled."""
    need(s.kind == "matching")
    s.train[1] = s.train[1][torch.randperm(len(s.train[1]), generator=generator(s.seed))]


@fault("data", "inputs_not_normalised")
def inputs_times_1000(s: Setup) -> None:
    """The inputs are 1000 times too large, in training and in validation."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    for data in (s.train, s.val):
        scaled(data, lambda x: 1000 * x)


@fault("data", "inputs_not_normalised")
def inputs_far_from_zero(s: Setup) -> None:
    """The inputs are between 0 and 255 or so: neither centred nor scaled."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    for data in (s.train, s.val):
        scaled(data, lambda x: 40 * x + 128)


@fault("data", "inputs_not_normalised", "targets_not_scaled")
def everything_times_1000(s: Setup) -> None:
    """Inputs and targets of an autoencoder are 1000 times too large."""
    need(s.kind == "reconstruction")
    for data in (s.train, s.val):
        data[:] = [1000 * each for each in data]


@fault("data", "inputs_too_small", "inputs_not_normalised")
def inputs_divided_twice(s: Setup) -> None:
    """The inputs are divided by 255 twice."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    for data in (s.train, s.val):
        scaled(data, lambda x: x / 255**2)


@fault("data", "blank_inputs")
def inputs_all_zero(s: Setup) -> None:
    """The training inputs are all zero."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    scaled(s.train, torch.zeros_like)


@fault("data", "nan_in_data")
def one_missing_value(s: Setup) -> None:
    """One value of the training inputs is NaN."""
    need(has_float_inputs(s))
    x = s.train[0].clone(memory_format=torch.contiguous_format)
    x.flatten(1)[len(x) // 2, 0] = float("nan")
    if s.kind == "reconstruction":
        s.train[-1] = x.clone()
    s.train[0] = x


@fault("data", "corrupt_sample", "corrupt_batch")
def one_huge_sample(s: Setup) -> None:
    """One training sample is 100,000 times too large."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    x = s.train[0].clone(memory_format=torch.contiguous_format)
    x[len(x) // 2] *= 1e5
    s.train[0] = x


@fault("data", "too_few_samples", "overconfidence")
def twelve_samples(s: Setup) -> None:
    """Only twelve training samples."""
    s.train = [each[:12] for each in s.train]
    s.batch_size = 6


@fault("data", "class_imbalance", "single_class")
def one_class_rules(s: Setup) -> None:
    """Nearly all training samples are of one class; the validation data are as before."""
    need(s.kind == "classes" or (s.kind == "binary" and s.train[-1].ndim == 1))
    rare = torch.nonzero(s.train[-1] != 0).flatten()[:6]
    chosen = torch.cat([torch.nonzero(s.train[-1] == 0).flatten(), rare]).sort().values
    s.train = [each[chosen] for each in s.train]


@fault("data", "sorted_data")
def sorted_by_target(s: Setup) -> None:
    """The training data are sorted by target and not shuffled."""
    need(s.train[-1].ndim == 1 and s.kind not in ("matching",))
    order = s.train[-1].argsort(stable=True)
    s.train, s.shuffle = [each[order] for each in s.train], False


@fault("data", "batch_too_small", "learning_rate_too_high_late", "learning_rate_too_high")
def batch_of_one(s: Setup) -> None:
    """One sample per batch, at the same learning rate."""
    need(not modules_of(s, nn.BatchNorm1d) and s.kind != "matching")
    s.batch_size = 1


@fault("validation", "validation_scaled_differently")
def validation_not_normalised(s: Setup) -> None:
    """The validation inputs are not normalised as the training inputs are."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    scaled(s.val, lambda x: 40 * x + 128)


@fault("validation", "labels_differ_at_validation")
def other_class_order(s: Setup) -> None:
    """The classes of the validation data have another order."""
    need(has_classes(s))
    labels = s.val[-1]
    classes = int(labels.max()) + 1
    s.val[-1] = torch.where(labels >= 0, (labels + 1) % classes, labels)


@fault("validation", "columns_differ_at_validation")
def shuffled_columns(s: Setup) -> None:
    """The columns of a table have another order in the validation data."""
    need(has_float_inputs(s) and s.train[0].ndim == 2)
    s.val[0] = s.val[0].flip(1)
