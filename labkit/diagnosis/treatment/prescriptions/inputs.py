"""Inputs and targets: brought to a usual scale, filled where they are missing, shuffled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.diagnosis.treatment.patient import Optimizer, Patient
from labkit.diagnosis.treatment.prescriptions.prescription import need, prescription
from labkit.diagnosis.treatment.prescriptions.updates import updated
from labkit.recording.nested import first_tensor, replaced
from labkit.recording.task import NUMBERS

SMALL = 1e-12  # a standard deviation below this is one of constants


def scale_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation: of each column of a table, of all values of images and sequences."""
    x = x.detach().double()
    x = torch.where(x.isfinite(), x, x[x.isfinite()].mean())
    mean, std = (x.mean(0), x.std(0)) if x.ndim == 2 and len(x) > 1 else (x.mean(), x.std())
    return mean.float(), torch.where(std > SMALL, std, torch.ones_like(std)).float()


class Standardised:
    """Inputs with mean 0 and standard deviation 1, as measured on the probe or on the first batch of this shape."""

    def __init__(self, patient: Patient, change: Callable[[Tensor, Tensor, Tensor], Tensor]):
        self.scales: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self.change = change
        inputs, _ = patient.probe
        parts = (
            inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple | list) else [inputs]
        )
        for each in parts:
            if torch.is_tensor(each) and each.is_floating_point():
                self.scales.setdefault(tuple(each.shape[1:]), scale_of(each))

    def __call__(self, x: Tensor) -> Tensor:
        key = tuple(x.shape[1:])
        if key not in self.scales:
            self.scales[key] = scale_of(x)
        mean, std = (each.to(x) for each in self.scales[key])
        return self.change(x, mean, std)


def has_float_inputs(patient: Patient) -> bool:
    inputs, _ = patient.probe
    found = first_tensor(inputs) if inputs is not None else None
    return found is None or found.is_floating_point()  # without a probe nobody knows


@prescription(
    "inputs with mean 0 and standard deviation 1",
    "inputs_not_normalised",
    "inputs_scaled_twice",
    "saturated_units",
    "dead_relu",
    "init_too_large",
    "sharp_valley",
    "learning_rate_too_high",
    "underfit",
    "learning_rate_too_low",
    "fp16_overflow",
    "exploding_gradients",
    code="mean, std = x_train.mean(0), x_train.std(0)\nx_train, x_val = (x_train - mean) / std, (x_val - mean) / std",
)
def standard_inputs(patient: Patient) -> None:
    need(has_float_inputs(patient), "the inputs are not numbers")
    patient.before_forward(Standardised(patient, lambda x, mean, std: (x - mean) / std))


@prescription(
    "validation inputs on the scale of the training inputs",
    "validation_scaled_differently",
    "augmented_validation",
    code="x_val = (x_val - mean) / std  # with mean and std of the training data, as for x_train",
)
def validation_rescaled(patient: Patient) -> None:
    need(has_float_inputs(patient), "the inputs are not numbers")

    def rescaled(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        if torch.is_grad_enabled() or len(x) < 8:
            return x
        own_mean, own_std = (each.to(x) for each in scale_of(x))
        return (x - own_mean) / own_std * std + mean

    patient.before_forward(Standardised(patient, rescaled))


@prescription(
    "missing values of the inputs replaced by the mean",
    "nan_in_data",
    "corrupt_sample",
    "zero_by_zero",
    code="x = torch.where(x.isfinite(), x, mean)",
)
def filled(patient: Patient) -> None:
    need(has_float_inputs(patient), "the inputs are not numbers")
    patient.before_forward(Standardised(patient, lambda x, mean, std: torch.where(x.isfinite(), x, mean)))


@prescription(
    "inputs limited to 10 standard deviations",
    "corrupt_sample",
    "corrupt_batch",
    "inputs_not_normalised",
    code="x = x.clamp(mean - 10 * std, mean + 10 * std)",
)
def limited(patient: Patient) -> None:
    need(has_float_inputs(patient), "the inputs are not numbers")
    patient.before_forward(Standardised(patient, lambda x, mean, std: x.clamp(mean - 10 * std, mean + 10 * std)))


# --- targets --------------------------------------------------------------------------------------------


@prescription(
    "targets with mean 0 and standard deviation 1",
    "targets_not_scaled",
    "learning_rate_too_high",
    "underfit",
    code="mean, std = y_train.mean(0), y_train.std(0)\n"
    "y_train = (y_train - mean) / std  # predictions: std * outputs + mean",
)
def standard_targets(patient: Patient) -> None:
    need(patient.task == NUMBERS, "the targets are not numbers")
    _, targets = patient.probe
    mean, std = scale_of(targets)

    def to_scale(_: nn.Module, __: Any, outputs: Any) -> Any:
        found = first_tensor(outputs)
        if found is None:
            return outputs
        shape = mean.shape if mean.ndim and found.shape[-1:] == mean.shape else ()
        return replaced(outputs, found, found * std.mean().to(found) + (mean if shape else mean.mean()).to(found))

    # The squared error of targets in thousands is a million times as large: back to what it would be.
    size = float(std.mean()) ** 2

    def unscaled(optimizer: Optimizer) -> None:
        for weight in updated(optimizer):
            weight.grad.div_(size)  # type: ignore[union-attr]

    patient.called.register_forward_hook(to_scale)
    patient.before_update(unscaled)


@prescription(
    "inputs and targets with mean 0 and standard deviation 1",
    "targets_not_scaled",
    "inputs_not_normalised",
    code=standard_inputs.code + "\n" + standard_targets.code,
    parts=("standard_inputs", "standard_targets"),
)
def standard_data(patient: Patient) -> None:
    standard_inputs.apply(patient)
    standard_targets.apply(patient)


PRESCRIPTIONS = (standard_inputs, standard_targets, standard_data, validation_rescaled, filled, limited)
