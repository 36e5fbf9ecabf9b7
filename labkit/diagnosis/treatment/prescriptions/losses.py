"""Another loss: the program's own update is left out, and one step of ours takes its place."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.diagnosis.treatment.patient import DoesNotApply, Patient
from labkit.diagnosis.treatment.prescriptions.prescription import need, prescription
from labkit.diagnosis.watch import IGNORED
from labkit.recording.nested import call, first_tensor, split_batch
from labkit.recording.task import CLASSES, NUMBERS, PIXELS, TOKENS, UNKNOWN, class_axis, task_of

WRONG_LOSS = (
    "loss_does_not_fit", "loss_broadcast", "class_weights_out_of_proportion", "penalty_too_strong", "weight_collapse",
    "silently_detached_loss", "detached_loss", "log_of_zero", "sqrt_at_zero", "naive_softmax", "naive_log_softmax",
    "zero_by_zero", "gradient_ascent", "summed_loss", "loss_scaled_down", "in_place_edit", "exploding_gradients",
)  # fmt: skip
KEPT = 256  # batches from which a shuffled one is put together


def fitting_loss(outputs: Any, targets: Any) -> Tensor:
    """Cross-entropy for classes, binary cross-entropy for yes and no, the mean squared error for numbers."""
    found = first_tensor(outputs)
    task = task_of(found, targets)
    if found is None or task == UNKNOWN:
        raise DoesNotApply("no loss is known that fits these outputs and targets")
    if task in (CLASSES, TOKENS, PIXELS):
        axis = class_axis(found, targets)
        return F.cross_entropy(found.movedim(axis, 1), targets.long(), ignore_index=IGNORED)  # type: ignore[arg-type]
    targets = targets.reshape(found.shape).to(found.dtype)
    return F.mse_loss(found, targets) if task == NUMBERS else F.binary_cross_entropy_with_logits(found, targets)


def own_steps(patient: Patient, loss_fn: Callable[[Any, Any], Tensor], batch_of: Callable[[Any], Any]) -> None:
    """Leave out the program's updates; whenever it reports a step, take one with this loss instead."""
    backward = Tensor.backward

    def harmless(loss: Tensor, *args: Any, **options: Any) -> None:
        if loss.requires_grad:  # without a graph it would raise
            backward(loss, *args, **options)

    def no_update(closure: Callable | None = None) -> Any:
        return closure() if closure else None

    no_update._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # or schedulers warn about the new function
    latest: list[Tensor] = []
    patient.minimised = lambda _: latest[-1]
    patient.patch(Tensor, "backward", harmless)
    for optimizer in patient.optimizers:
        patient.patch(optimizer, "step", no_update)

    def step(batch: Any) -> None:
        if batch is None:
            raise DoesNotApply("the batch is not known: the program calls record.step(loss) without it")
        inputs, targets = split_batch(batch_of(batch))
        for group in patient.groups():
            for weight in group["params"]:
                weight.grad = None
        with torch.enable_grad():
            loss = loss_fn(call(patient.called, inputs), targets)
            backward(loss)
        latest[:] = [loss.detach()]
        patient.update_now()

    patient.at_each_step.append(step)


def the_same(batch: Any) -> Any:
    return batch


@prescription(
    "the loss that fits the task, without weights or penalties",
    *WRONG_LOSS,
    code="loss = F.cross_entropy(outputs, classes)  # yes or no: F.binary_cross_entropy_with_logits(outputs, targets)\n"
    "loss.backward()                          # numbers: F.mse_loss(outputs, targets), of the same shape",
)
def usual_loss(patient: Patient) -> None:
    need(patient.probe[0] is None or patient.task != UNKNOWN, "no loss is known that fits this task")
    own_steps(patient, fitting_loss, the_same)


@prescription(
    "backward() on the loss that `watch` was given",
    "silently_detached_loss",
    "detached_loss",
    "gradient_ascent",
    "summed_loss",
    "penalty_too_strong",
    "in_place_edit",
    code="loss = loss_fn(model(x), y)  # nothing detached, no .item() or .data in between\nloss.backward()",
)
def watched_loss(patient: Patient) -> None:
    need(patient.loss_fn, "watch was not given a loss_fn")
    assert patient.loss_fn
    inputs, targets = patient.probe
    if inputs is not None and targets is not None:
        with torch.enable_grad():
            loss = patient.loss_fn(call(patient.called, inputs), targets)
        need(loss.requires_grad, "the loss_fn of watch has no graph either")
    own_steps(patient, patient.loss_fn, the_same)


@prescription(
    "batches in random order",
    "sorted_data",
    code="DataLoader(data, batch_size=32, shuffle=True)",
)
def shuffled(patient: Patient) -> None:
    need(patient.loss_fn or patient.task != UNKNOWN, "no loss is known that fits this task")
    kept: list[Any] = []
    chance = random.Random(0)

    def mixed(batch: Any) -> Any:
        """A batch of as many samples, drawn from those that came before."""
        if not isinstance(batch, tuple | list) or not all(map(torch.is_tensor, batch)):
            raise DoesNotApply("batches are shuffled where they are tuples of tensors")
        kept.append([part.detach() for part in batch])
        del kept[:-KEPT]
        chosen = [(chance.choice(kept)) for _ in range(len(batch[-1]))]
        rows = [chance.randrange(len(one[-1])) for one in chosen]
        return tuple(
            torch.stack([one[part][row] for one, row in zip(chosen, rows, strict=True)]) for part in range(len(batch))
        )

    own_steps(patient, patient.loss_fn or fitting_loss, mixed)


PRESCRIPTIONS = (usual_loss, watched_loss, shuffled)
