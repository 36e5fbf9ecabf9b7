"""The learning rate, its schedule, momentum, another optimizer, and longer training."""

import math
from typing import Any

import torch

from labkit.diagnosis.treatment.patient import Optimizer, Patient
from labkit.diagnosis.treatment.prescriptions.prescription import Prescription, need, prescription

TOO_HIGH = (
    "learning_rate_too_high", "learning_rate_too_high_late", "dead_relu_by_learning_rate", "summed_loss",
    "sharp_valley", "momentum_too_high", "batch_too_small", "exploding_gradients", "exploding_recurrent_gradients",
    "warmup_missing", "runaway_weights", "init_too_large", "inputs_not_normalised",
)  # fmt: skip
TOO_LOW = (
    "learning_rate_too_low", "learning_rate_left_low", "loss_scaled_down", "warmup_too_long", "training_not_finished",
    "schedule_too_short", "underfit", "plateau", "saddle_point", "vanishing_gradients", "sharp_minimum",
    "inputs_scaled_twice", "clipping_too_tight", "value_clipping_too_tight",
)  # fmt: skip
TIMES = "rate_times_"  # names of prescriptions with a factor


def rate_times(factor: float) -> Prescription:
    """The learning rate times a factor, whatever schedule the program has."""

    def apply(patient: Patient) -> None:
        patient.factors.append(lambda _: factor)

    code = f'for group in optimizer.param_groups:\n    group["lr"] *= {factor:.3g}  # before a scheduler is built'
    answers = TOO_LOW if factor > 1 else TOO_HIGH
    return Prescription(f"{TIMES}{factor:.4g}", f"the learning rate times {factor:.3g}", answers, apply, code)


RATES = tuple(map(rate_times, (0.1, 10.0, 0.01, 100.0)))

# --- the range test -------------------------------------------------------------------------------------

DECADES = 5.0  # the range test goes from 10^-5 to 10^5 times the program's own learning rate
FEWEST = 40  # steps: with fewer a decade would have less than four


def range_of(steps: int) -> float:
    """How many decades to either side can be tested in this number of steps."""
    return min(DECADES, steps / 20)


def sweep(patient: Patient) -> None:
    need(patient.steps >= FEWEST, f"a range test needs {FEWEST} steps, the program has {patient.steps}")
    side = range_of(patient.steps)
    patient.holds_rate = True
    patient.factors.append(lambda at: 10 ** (2 * side * min(1.0, at / patient.steps) - side))


RANGE_TEST = Prescription("range_test", "a rising learning rate", (), sweep, "labkit.find_lr(...)")


# --- schedules ------------------------------------------------------------------------------------------


@prescription(
    "a constant learning rate",
    "scheduler_stepped_per_batch",
    "schedule_too_short",
    "warmup_too_long",
    "learning_rate_left_low",
    "learning_rate_too_low",
    "resumed_without_state",
    "training_not_finished",
    code="# leave out scheduler.step(), and start from the learning rate itself",
)
def constant_rate(patient: Patient) -> None:
    patient.holds_rate = True


@prescription(
    "warm-up over the first tenth of the steps",
    "warmup_missing",
    "learning_rate_too_high",
    "attention_entropy_collapse",
    "dead_relu_by_learning_rate",
    code="scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=steps // 10)"
    "  # scheduler.step() after each batch",
)
def warm_up(patient: Patient) -> None:
    need(patient.steps, "the number of steps is not known")
    patient.factors.append(lambda at: min(1.0, (at + 1) / max(1, patient.steps // 10)))


@prescription(
    "cosine decay of the learning rate to 0",
    "learning_rate_too_high_late",
    "batch_too_small",
    "sharp_valley",
    code="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)"
    "  # scheduler.step() after each batch",
)
def cosine_decay(patient: Patient) -> None:
    need(patient.steps, "the number of steps is not known")
    patient.factors.append(lambda at: 0.5 * (1 + math.cos(math.pi * min(1.0, at / patient.steps))))


# --- momentum and other optimizers ------------------------------------------------------------------------


@prescription(
    "momentum 0.9",
    "momentum_too_high",
    "learning_rate_too_high",
    "learning_rate_left_low",
    "sharp_valley",
    "saddle_point",
    "plateau",
    "learning_rate_too_high_late",
    code="optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)  # Adam: betas=(0.9, 0.999)",
)
def usual_momentum(patient: Patient) -> None:
    changed = False
    for group in patient.groups():
        if "momentum" in group:
            changed |= group["momentum"] != 0.9
            group["momentum"] = 0.9
        elif "betas" in group:
            changed |= tuple(group["betas"]) != (0.9, 0.999)
            group["betas"] = (0.9, 0.999)
    need(changed, "momentum is as usual already")


def shadow(patient: Patient, make: Any) -> None:
    """Another optimizer updates the weights; the program's own step changes nothing."""
    need(not any(isinstance(each, torch.optim.LBFGS) for each in patient.optimizers), "LBFGS has its own loop")
    made: dict[Optimizer, Optimizer] = {}

    def update(optimizer: Optimizer) -> None:
        if optimizer not in made:
            made[optimizer] = make([weight for group in optimizer.param_groups for weight in group["params"]])
        made[optimizer].step()

    patient.instead = update


@prescription(
    "Adam with a learning rate of 0.001",
    "learning_rate_too_low",
    "learning_rate_too_high",
    "learning_rate_left_low",
    "summed_loss",
    "loss_scaled_down",
    "saddle_point",
    "plateau",
    "clipping_too_tight",
    "value_clipping_too_tight",
    "momentum_too_high",
    "sharp_valley",
    "warmup_too_long",
    "runaway_weights",
    "vanishing_gradients",
    code="optimizer = torch.optim.Adam(model.parameters(), lr=0.001)  # without a scheduler",
)
def adam(patient: Patient) -> None:
    shadow(patient, lambda weights: torch.optim.Adam(weights, lr=1e-3))


@prescription(
    "Adam with a learning rate of 0.005",
    "learning_rate_too_low",
    "learning_rate_left_low",
    "learning_rate_too_high",
    "loss_scaled_down",
    "clipping_too_tight",
    "value_clipping_too_tight",
    code="optimizer = torch.optim.Adam(model.parameters(), lr=0.005)  # without a scheduler",
)
def faster_adam(patient: Patient) -> None:
    shadow(patient, lambda weights: torch.optim.Adam(weights, lr=5e-3))


@prescription(
    "the gradients of 8 batches averaged before each update",
    "batch_too_small",
    "tiny_batch_norm",
    "learning_rate_too_high_late",
    code="(loss / 8).backward()\nif step % 8 == 7:\n    optimizer.step()\n    optimizer.zero_grad()",
)
def eight_batches(patient: Patient) -> None:
    sums: dict[Any, torch.Tensor] = {}
    seen: dict[Optimizer, int] = {}

    def gather(optimizer: Optimizer) -> None:
        seen[optimizer] = seen.get(optimizer, 0) + 1
        due = seen[optimizer] % 8 == 0
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            if weight.grad is None:
                continue
            total = weight.grad.detach().clone() + sums.pop(weight, 0.0)
            weight.grad = total / 8 if due else None
            if not due:
                sums[weight] = total

    patient.before_update(gather)


# --- longer training --------------------------------------------------------------------------------------

UNFINISHED = ("training_not_finished", "learning_rate_too_low", "underfit", "plateau", "learning_rate_left_low")


def nothing(_: Patient) -> None:
    """What is prescribed is done by whoever runs the program."""


LONGER = tuple(
    Prescription(
        f"{count}_times_as_long",
        f"{count} times as many steps",
        UNFINISHED,
        nothing,
        f"epochs = {count} * epochs",
        count,
    )
    for count in (4, 20)
)

PRESCRIPTIONS = (
    constant_rate,
    *RATES,
    adam,
    faster_adam,
    usual_momentum,
    warm_up,
    cosine_decay,
    eight_batches,
    *LONGER,
)
