"""The net itself: how weights start, activations, normalisation, dropout, train and eval mode."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.treatment.patient import Patient, activations_of, swap_activations
from labkit.diagnosis.treatment.prescriptions.prescription import need, prescription
from labkit.recording.nested import first_tensor, replaced
from labkit.recording.task import LABELS, YES_NO

BAD_START = (
    "zero_init", "symmetric_init", "init_too_large", "head_init_too_large", "exploding_gradients", "saturated_units",
    "exploding_recurrent_gradients", "dead_relu", "partly_dead_layer", "dead_branch", "attention_entropy_collapse",
    "plateau", "saddle_point", "vanishing_gradients", "runaway_weights", "fp16_overflow",
)  # fmt: skip

# --- weights drawn again --------------------------------------------------------------------------------


@prescription(
    "weights drawn again with PyTorch's default init",
    *BAD_START,
    "learning_rate_too_high",
    code="for module in model.modules():\n"
    '    if hasattr(module, "reset_parameters"):\n        module.reset_parameters()',
)
def default_init(patient: Patient) -> None:
    drawn = False
    for module in patient.model.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        own = list(module.parameters(recurse=False))
        if reset and all(weight.requires_grad for weight in own) and not hasattr(module, "parametrizations"):
            reset()
            drawn = True
        elif not reset:  # weights of a module of the program's own
            for weight in own:
                if weight.requires_grad and weight.ndim > 1:
                    nn.init.xavier_uniform_(weight)
    need(drawn, "no module has a default init")


@prescription(
    "weights drawn again with the init that fits the activation (He for ReLU, else Xavier)",
    *BAD_START,
    code="torch.nn.init.kaiming_normal_(layer.weight)  # xavier_normal_ with tanh or sigmoid\n"
    "torch.nn.init.zeros_(layer.bias)",
)
def fitting_init(patient: Patient) -> None:
    default_init.apply(patient)
    names, _ = activations_of(patient)
    saturating = any(name in ("tanh", "sigmoid", "softsign") for name in names)
    layers = patient.layers()
    hidden, last = layers[:-1], layers[-1:]
    need(hidden, "there is no hidden linear or convolutional layer")
    for entry in layers:
        layer: Any = entry[1]
        if not layer.weight.requires_grad or hasattr(layer, "parametrizations"):
            continue
        he = not saturating and entry not in last
        (nn.init.kaiming_normal_ if he else nn.init.xavier_normal_)(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


# --- activations ----------------------------------------------------------------------------------------


@prescription(
    "ReLU in the place of sigmoid and tanh, with He init",
    "vanishing_gradients",
    "saturated_units",
    "plain_net_too_deep",
    "plateau",
    "underfit",
    code="nn.ReLU()  # in the place of nn.Sigmoid() and nn.Tanh() between layers, with torch.nn.init.kaiming_normal_",
)
def relu_between(patient: Patient) -> None:
    names, on_outputs = activations_of(patient)
    old = ("sigmoid", "tanh", "hardtanh", "softsign", "softplus", "logsigmoid")
    chosen = {number for number, name in enumerate(names) if name in old and number != on_outputs}
    need(chosen, "no hidden sigmoid or tanh")
    layers = patient.layers()
    for _, layer in layers[:-1]:
        if layer.weight.requires_grad and not hasattr(layer, "parametrizations"):  # type: ignore[union-attr]
            nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    swap_activations(patient, lambda number, _: torch.relu if number in chosen else None)


@prescription(
    "leaky ReLU in the place of ReLU",
    "dead_relu",
    "partly_dead_layer",
    "dead_branch",
    "dead_relu_by_learning_rate",
    code="nn.LeakyReLU()  # in the place of nn.ReLU()",
)
def leaky(patient: Patient) -> None:
    names, on_outputs = activations_of(patient)
    chosen = {number for number, name in enumerate(names) if name == "relu" and number != on_outputs}
    need(chosen, "no hidden ReLU")
    swap_activations(patient, lambda number, _: F.leaky_relu if number in chosen else None)


@prescription(
    "ReLU after every hidden layer",
    "missing_nonlinearity",
    "underfit",
    code="nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c))",
)
def relu_added(patient: Patient) -> None:
    names, _ = activations_of(patient)
    hidden = patient.layers()[:-1]
    need(hidden and len(names) < len(hidden), "there are activations between the layers")
    for _, layer in hidden:
        layer.register_forward_hook(lambda _, __, outputs: torch.relu(outputs))


@prescription(
    "no activation on the outputs",
    "activation_on_outputs",
    "softmax_before_cross_entropy",
    "softmax_over_batch",
    "loss_does_not_fit",
    "naive_softmax",
    "naive_log_softmax",
    "dead_relu",
    "saturated_units",
    code="return self.last_layer(x)  # logits or numbers: no softmax, sigmoid, tanh or ReLU behind the last layer",
)
def raw_outputs(patient: Patient) -> None:
    names, on_outputs = activations_of(patient)
    need(on_outputs is not None, "the outputs do not come from an activation")
    assert on_outputs is not None
    # A question of yes or no keeps its probabilities in validation: the program's threshold is made for them.
    keeps = names[on_outputs] == "sigmoid" and patient.task in (YES_NO, LABELS)

    def swap(number: int, _: str) -> Any:
        if number != on_outputs or (keeps and not torch.is_grad_enabled()):
            return None
        return unchanged_tensor

    swap_activations(patient, swap)


def are_probabilities(outputs: Tensor | None) -> bool:
    """Of classes: along one axis none is negative, and their sum is 1."""
    if outputs is None or outputs.ndim < 2 or not outputs.is_floating_point() or bool((outputs < 0).any()):
        return False
    sums = (outputs.sum(axis) for axis in (1, -1) if outputs.shape[axis] > 1)
    return any(torch.allclose(each, torch.ones_like(each), atol=1e-3) for each in sums)


@prescription(
    "the logarithm of the probabilities as outputs, where cross-entropy expects logits",
    "softmax_before_cross_entropy",
    "activation_on_outputs",
    "loss_does_not_fit",
    "naive_softmax",
    code="loss = F.nll_loss(torch.log(probabilities), classes)  # or leave out what makes probabilities of the logits",
)
def logits(patient: Patient) -> None:
    need(activations_of(patient)[1] is None, "the outputs come from an activation: leaving it out comes first")
    need(are_probabilities(patient.outputs()), "the outputs are not probabilities of classes")

    def to_logits(_: nn.Module, __: Any, outputs: Any) -> Any:
        found = first_tensor(outputs)
        assert found is not None
        return replaced(outputs, found, found.clamp_min(torch.finfo(found.dtype).tiny).log())

    patient.called.register_forward_hook(to_logits)


def unchanged_tensor(x: Tensor) -> Tensor:
    return x


# --- normalisation --------------------------------------------------------------------------------------

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@prescription(
    "batch norm with its usual momentum and fresh statistics",
    "batch_norm_statistics_frozen",
    "poisoned_batch_norm",
    code="nn.BatchNorm2d(channels)  # momentum=0.1, track_running_stats=True",
)
def usual_batch_norm(patient: Patient) -> None:
    norms = [module for module in patient.model.modules() if isinstance(module, NORMS)]
    need(norms, "there is no batch norm")
    for norm in norms:
        norm.momentum, norm.eps = 0.1, 1e-5
        if norm.running_mean is not None:
            norm.reset_running_stats()


@prescription(
    "group norm in the place of batch norm",
    "tiny_batch_norm",
    "batch_norm_in_train_mode_at_validation",
    "poisoned_batch_norm",
    "eval_mode_in_training",
    "batch_too_small",
    code="nn.GroupNorm(1, channels)  # in the place of nn.BatchNorm2d(channels)",
)
def group_norm(patient: Patient) -> None:
    norms = [module for module in patient.model.modules() if isinstance(module, NORMS)]
    need(norms, "there is no batch norm")
    for norm in norms:
        norm.forward = grouped(norm)  # type: ignore[method-assign]


def grouped(norm: Any) -> Any:
    return lambda x: F.group_norm(x, 1, norm.weight, norm.bias)


@prescription(
    "batch norm after every hidden layer",
    "vanishing_gradients",
    "exploding_gradients",
    "dead_relu",
    "plain_net_too_deep",
    "partly_dead_layer",
    "init_too_large",
    "saturated_units",
    code="nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), ...)",
)
def batch_norm_added(patient: Patient) -> None:
    need(not any(isinstance(module, NORMS) for module in patient.model.modules()), "there is batch norm already")
    hidden = patient.layers()[:-1]
    need(hidden, "there is no hidden linear or convolutional layer")
    for number, (_, layer) in enumerate(hidden):
        size = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels  # type: ignore[union-attr]
        norm = nn.BatchNorm1d(int(size)).to(layer.weight.device)  # type: ignore[union-attr,arg-type]
        patient.model.add_module(f"labkit_norm_{number}", norm)
        patient.hand_over(list(norm.parameters()))
        layer.register_forward_hook(normalised(norm, -1 if isinstance(layer, nn.Linear) else 1))


def normalised(norm: nn.Module, axis: int) -> Any:
    """A forward hook that puts the outputs through a one-dimensional batch norm, along the axis of the channels."""

    def hook(_: nn.Module, __: Any, outputs: Tensor) -> Tensor:
        moved = outputs.movedim(axis, -1)
        return norm(moved.reshape(-1, moved.shape[-1])).reshape(moved.shape).movedim(-1, axis)

    return hook


@prescription(
    "no dropout",
    "too_much_dropout",
    "dropout_at_validation",
    "underfit",
    code="nn.Dropout(0.0)",
)
def no_dropout(patient: Patient) -> None:
    drops = [module for module in patient.model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    need(any(drop.p > 0 for drop in drops), "there is no dropout")
    for drop in drops:
        drop.p = 0.0


# --- modes ----------------------------------------------------------------------------------------------


def keep_mode(patient: Patient, training: bool) -> None:
    """Train mode for passes with gradients, or eval mode for those without; also where model.eval() was replaced."""

    def put_right(*_: Any) -> None:
        if torch.is_grad_enabled() == training:
            for module in patient.model.modules():
                module.training = training

    patient.called.register_forward_pre_hook(put_right, prepend=True)

    def restore(*_: Any) -> None:  # so that the next pass, and the program, find what they would have found
        if torch.is_grad_enabled() == training:
            for module in patient.model.modules():
                module.training = True

    patient.called.register_forward_hook(restore)


@prescription(
    "eval mode for validation",
    "dropout_at_validation",
    "batch_norm_in_train_mode_at_validation",
    "poisoned_batch_norm",
    code="model.eval()  # before validation, with torch.no_grad(); model.train() after it",
)
def eval_mode(patient: Patient) -> None:
    keep_mode(patient, training=False)


@prescription(
    "train mode for training",
    "eval_mode_in_training",
    "batch_norm_statistics_frozen",
    "overconfidence",
    code="model.train()  # after each validation",
)
def train_mode(patient: Patient) -> None:
    keep_mode(patient, training=True)


PRESCRIPTIONS = (
    raw_outputs, logits, default_init, fitting_init, relu_between, leaky, relu_added, batch_norm_added,
    usual_batch_norm, group_norm, no_dropout, eval_mode, train_mode,
)  # fmt: skip
