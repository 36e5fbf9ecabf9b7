"""Faults in the outputs and the loss."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.diagnosis.evaluation.foreign.operators import (
    change_loss,
    fault,
    has_classes,
    logits_of,
    need,
    numbers,
    on_outputs,
    scaled,
    yes_no,
)
from labkit.diagnosis.evaluation.foreign.setup import Setup

# --- outputs and loss ---------------------------------------------------------------------------------


@fault("output and loss", "softmax_before_cross_entropy", "activation_on_outputs")
def softmax_before_loss(s: Setup) -> None:
    """Softmax at the end of the net, and again in the loss."""
    need(has_classes(s))
    on_outputs(s, nn.Softmax(s.class_axis))


@fault("output and loss", "softmax_over_batch", "activation_on_outputs")
def softmax_over_the_batch(s: Setup) -> None:
    """Softmax over the samples of the batch."""
    need(has_classes(s))
    on_outputs(s, nn.Softmax(0))


@fault("output and loss", "activation_on_outputs")
def sigmoid_twice(s: Setup) -> None:
    """Sigmoid at the end of the net, and again in the loss."""
    need(yes_no(s))
    on_outputs(s, nn.Sigmoid())


@fault("output and loss", "softmax_over_batch", "activation_on_outputs")
def softmax_over_one_unit(s: Setup) -> None:
    """Softmax over a single output: always 1."""
    need(s.kind == "binary")

    class Softmax(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x.reshape(*x.shape, 1), -1).reshape(x.shape)

    on_outputs(s, Softmax())


@fault("output and loss", "activation_on_outputs")
def relu_on_outputs(s: Setup) -> None:
    """ReLU behind the last layer."""
    need(s.kind not in ("pairs", "matching"))
    on_outputs(s, nn.ReLU())


@fault("output and loss", "activation_on_outputs")
def sigmoid_on_numbers(s: Setup) -> None:
    """Sigmoid behind the last layer of a regression."""
    need(numbers(s))
    on_outputs(s, nn.Sigmoid())


@fault("output and loss", "loss_does_not_fit")
def absolute_error_for_classes(s: Setup) -> None:
    """Mean absolute error between softmax outputs and one-hot classes."""
    need(s.kind == "classes")

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        said = logits_of(outputs).softmax(-1)
        return F.l1_loss(said, F.one_hot(targets, said.shape[-1]).float())

    s.loss = loss


@fault("output and loss", "loss_does_not_fit")
def squared_error_of_class_numbers(s: Setup) -> None:
    """Mean squared error between the largest output and the number of the class."""
    need(s.kind == "classes")
    s.loss = lambda outputs, targets: F.mse_loss(logits_of(outputs).amax(-1), targets.float())


@fault("output and loss", "loss_does_not_fit")
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
def log_of_saturated_probability(s: Setup) -> None:
    """The logarithm of probabilities made by tanh, which are exactly 0 or 1 for outputs beyond 9."""
    need(yes_no(s))

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        said = (torch.tanh(logits_of(outputs).reshape(targets.shape)) + 1) / 2
        return -(targets * said.log() + (1 - targets) * (1 - said).log()).mean()

    s.loss = loss


@fault("output and loss", "class_weights_out_of_proportion")
def one_class_weighs_most(s: Setup) -> None:
    """The loss weighs one class a thousand times as much as the others."""
    need(s.kind == "classes")
    weights = torch.full((int(s.train[-1].max()) + 1,), 1e-3)
    weights[0] = 1.0
    s.loss = lambda outputs, targets: F.cross_entropy(logits_of(outputs), targets, weight=weights)


@fault("output and loss", "embeddings_collapse")
def nothing_is_pushed_apart(s: Setup) -> None:
    """The loss only pulls together what belongs together: the same embedding for everything is perfect."""
    need(s.kind in ("pairs", "matching"))
    outputs = s.model(*(each[:8] for each in s.train[:-1]))
    if isinstance(outputs, tuple):
        need(len(outputs) > 1 and outputs[0].shape == outputs[1].shape)
        s.loss = lambda outputs, _: F.pairwise_distance(outputs[0], outputs[1]).pow(2).mean()
    else:  # the similarity of each with each
        need(torch.is_tensor(outputs) and outputs.shape == (8, 8))
        s.loss = lambda outputs, _: -outputs.diagonal().mean()
