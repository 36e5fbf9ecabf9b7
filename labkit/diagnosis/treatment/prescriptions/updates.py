"""Gradients and updates: clipping, clearing, stepping, the sign, and which weights the optimizer has."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.diagnosis.treatment.patient import Optimizer, Patient
from labkit.diagnosis.treatment.prescriptions.prescription import need, prescription


def updated(optimizer: Optimizer) -> list[Tensor]:
    """The weights of an optimizer that have a gradient."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return [weight for weight in weights if weight.grad is not None]


@prescription(
    "the gradient norm clipped to 1",
    "exploding_gradients",
    "exploding_recurrent_gradients",
    "corrupt_sample",
    "corrupt_batch",
    "learning_rate_too_high",
    "sharp_valley",
    "runaway_weights",
    code="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # between backward() and optimizer.step()",
)
def clipped(patient: Patient) -> None:
    patient.before_update(lambda optimizer: nn.utils.clip_grad_norm_(updated(optimizer), 1.0))


@prescription(
    "no clipping",
    "clipping_too_tight",
    "value_clipping_too_tight",
    "learning_rate_too_low",
    code="# leave out clip_grad_norm_ and clip_grad_value_, or clip the norm to 1",
)
def unclipped(patient: Patient) -> None:
    need(not patient.options.get("scaler"), "a GradScaler changes the gradients in between")
    arrived: dict[Any, Tensor] = {}

    def keep(weight: Any) -> None:
        arrived[weight] = weight.grad.detach().clone()

    for weight in patient.weights():
        weight.register_post_accumulate_grad_hook(keep)

    def restore(optimizer: Optimizer) -> None:
        for weight in updated(optimizer):
            if weight in arrived:
                weight.grad = arrived.pop(weight)

    patient.before_update(restore)


@prescription(
    "gradients cleared after each update",
    "zero_grad_missing",
    "momentum_too_high",
    code="optimizer.zero_grad()  # before each backward()",
)
def cleared(patient: Patient) -> None:
    def clear(optimizer: Optimizer) -> None:
        for weight in updated(optimizer):
            weight.grad = None

    patient.after_update(clear)


@prescription(
    "updates with a gradient that is not finite left out",
    "nan_in_data",
    "corrupt_batch",
    "corrupt_sample",
    "fp16_overflow",
    "fp16_backward_overflow",
    "zero_by_zero",
    code="if all(weight.grad.isfinite().all() for weight in model.parameters()):\n    optimizer.step()",
)
def finite_only(patient: Patient) -> None:
    def check(optimizer: Optimizer) -> None:
        weights = updated(optimizer)
        if not all(bool(weight.grad.isfinite().all()) for weight in weights):  # type: ignore[union-attr]
            for weight in weights:
                weight.grad = None

    patient.before_update(check)


@prescription(
    "an update after each backward()",
    "step_missing",
    code="optimizer.step()  # after each loss.backward()",
)
def stepped(patient: Patient) -> None:
    waiting: set[Any] = set()
    for weight in patient.weights():
        weight.register_post_accumulate_grad_hook(waiting.add)
    patient.after_update(lambda _: waiting.clear())

    def update(_: Any = None) -> None:
        if waiting:
            patient.update_now()

    def updating(clear: Any) -> Any:
        def zero_grad(*args: Any, **options: Any) -> None:
            update()
            clear(*args, **options)

        return zero_grad

    for owner in (*patient.optimizers, patient.model):
        patient.patch(owner, "zero_grad", updating(owner.zero_grad))
    patient.at_each_step.append(update)


# --- the sign -----------------------------------------------------------------------------------------


@prescription(
    "minimising",
    "gradient_ascent",
    code="optimizer = torch.optim.SGD(model.parameters(), lr=abs(lr), maximize=False)",
)
def minimising(patient: Patient) -> None:
    changed = False
    for group in patient.groups():
        changed |= bool(group.get("maximize")) or float(group["lr"]) < 0
        group["lr"] = abs(group["lr"])
        if "maximize" in group:
            group["maximize"] = False
    need(changed, "no optimizer maximises")


@prescription(
    "the sign of the loss changed",
    "gradient_ascent",
    code="(-loss).backward()  # or correct the sign where the loss is computed",
)
def sign_changed(patient: Patient) -> None:
    def negate(optimizer: Optimizer) -> None:
        for weight in updated(optimizer):
            weight.grad.neg_()  # type: ignore[union-attr]

    need(not any(group.get("maximize") for group in patient.groups()), "the optimizer maximises: that comes first")
    patient.before_update(negate)
    patient.minimised = lambda loss: -loss


# --- which weights are trained --------------------------------------------------------------------------


def unregistered(model: nn.Module) -> list[nn.Parameter]:
    """Weights of modules that are kept in plain lists, tuples and dictionaries: no list of parameters has them."""
    known, found = {id(weight) for weight in model.parameters()}, []
    for module in list(model.modules()):
        for value in vars(module).values():
            entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            for each in entries:
                if isinstance(each, nn.Module):
                    found += [weight for weight in each.parameters() if id(weight) not in known]
    return list({id(weight): weight for weight in found}.values())


def missing(patient: Patient) -> list[nn.Parameter]:
    """Weights that require a gradient and that no optimizer has."""
    had = {id(weight) for group in patient.groups() for weight in group["params"]}
    return [each for each in [*patient.weights(), *unregistered(patient.model)] if id(each) not in had]


@prescription(
    "all weights given to the optimizer",
    "stale_optimizer",
    "unregistered_layers",
    "underfit",
    code="optimizer = torch.optim.Adam(model.parameters(), lr=lr)  # built after the last change to the model;\n"
    "# layers in an nn.ModuleList, not in a list",
)
def handed_over(patient: Patient) -> None:
    lacking = missing(patient)
    need(lacking, "the optimizer has all weights")
    patient.hand_over(lacking)


@prescription(
    "frozen layers trained",
    "frozen_layers",
    "underfit",
    code="model.requires_grad_(True)  # before the optimizer is built from model.parameters()",
)
def unfrozen(patient: Patient) -> None:
    frozen = [each for each in patient.model.parameters() if not each.requires_grad and each.is_floating_point()]
    need(frozen, "no weight is frozen")
    for weight in frozen:
        weight.requires_grad_(True)
    patient.hand_over(missing(patient))


# --- regularisation -------------------------------------------------------------------------------------


@prescription(
    "no weight decay",
    "weight_collapse",
    "runaway_weights",
    "penalty_too_strong",
    "underfit",
    "learning_rate_too_low",
    code="optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=0)",
)
def no_weight_decay(patient: Patient) -> None:
    groups = [group for group in patient.groups() if group.get("weight_decay")]
    need(groups, "there is no weight decay")
    for group in groups:
        group["weight_decay"] = 0.0


# --- number formats -------------------------------------------------------------------------------------

HALF = (torch.float16, torch.bfloat16)
NUMERICS = (
    "fp16_overflow", "fp16_backward_overflow", "fp16_underflow", "bf16_updates_lost", "adam_state_in_fp16",
    "half_precision_adam",
)  # fmt: skip


@prescription("float32 everywhere", *NUMERICS, code="model.float()  # and no torch.autocast")
def in_float32(patient: Patient) -> None:
    class Plainly:
        """In the place of torch.autocast."""

        def __init__(self, *_: Any, **__: Any):
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

        def __call__(self, function: Any) -> Any:
            return function

    half = any(weight.dtype in HALF for weight in patient.model.parameters())
    need(half or "autocast" in patient.options or patient.options.get("scaler"), "everything is in float32 already")
    patient.model.float()
    patient.options.pop("autocast", None)
    patient.patch(torch, "autocast", Plainly)
    patient.patch(torch.amp, "autocast", Plainly)
    patient.before_forward(lambda x: x.float() if x.dtype in HALF else x)


@prescription(
    "the loss multiplied by 1,024 before backward()",
    "fp16_underflow",
    "fp16_backward_overflow",
    code="scaler = torch.amp.GradScaler()\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
)
def loss_scaled(patient: Patient) -> None:
    need(not patient.options.get("scaler"), "there is a GradScaler already")
    backward = Tensor.backward

    def scaled(loss: Tensor, *args: Any, **options: Any) -> None:
        backward(loss * 1024, *args, **options)

    def unscale(optimizer: Optimizer) -> None:
        for weight in updated(optimizer):
            weight.grad.div_(1024)  # type: ignore[union-attr]

    patient.patch(Tensor, "backward", scaled)
    patient.before_update(unscale)


PRESCRIPTIONS = (
    minimising, sign_changed, handed_over, unfrozen, cleared, stepped, no_weight_decay, clipped, unclipped, finite_only,
    in_float32, loss_scaled,
)  # fmt: skip
