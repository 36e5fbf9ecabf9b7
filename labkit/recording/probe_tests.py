"""Tests on the probe that tell causes apart without training: one gradient and a few forward passes, at the end.

Each leaves model, gradients, modes and random numbers as they were.
"""

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from labkit.recording.leak_tests import token_tests
from labkit.recording.nested import call, first_tensor, real, replaced, tensors, with_tensors
from labkit.recording.task import NUMBERS, perfect_outputs, task_of
from labkit.recording.token_tests import what_counts, what_the_loss_asks
from labkit.recording.undisturbed import evaluating, unchanged

TESTED = 256  # samples of the probe; more change the results little
# Lengths of the steps that are tried, relative to the norm of the weights: from what the smallest useful learning rate
# changes to three times the weights themselves, in steps of half a decade.
LENGTHS = tuple(10 ** (exponent / 2) for exponent in range(-12, 2))
SHIFTS = (1, 2, 3)  # by how many samples targets are moved, so that each meets another sample
Loss = Callable[[Any, Any], torch.Tensor]


def probe_tests(
    model: nn.Module, loss: Loss | None, x: Any, y: Any, autocast: Callable = contextlib.nullcontext
) -> tuple[str, dict[str, float]]:
    """(the task, the results by name); a test that does not apply to this net or loss has no result."""
    with unchanged(model), evaluating(model), autocast():
        with torch.no_grad():
            x, y, answer = first_samples(model, loss, x, y)
        outputs = first_tensor(answer)
        found = scales(outputs, y) | token_tests(model, x, y, outputs)
        if loss is not None and y is not None and outputs is not None:
            found |= truth_test(loss, answer, outputs, y)
            found |= input_test(model, loss, x, y, answer)
            found |= what_the_loss_asks(loss, x, y, answer) | what_counts(loss, x, y, outputs)
            if math.isfinite(found["loss"]):  # NaN has no gradient, and some losses refuse it with an error
                found |= step_test(model, loss, x, y)
    return task_of(outputs, y), {name: value for name, value in found.items() if math.isfinite(value)}


def first_samples(model: nn.Module, loss: Loss | None, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """The first samples of the probe, their targets, and what the net returns for them; all of it where it cannot be
    cut: where its tensors are of several lengths, or samples belong together, as the nodes of a graph do."""
    lengths = tensor_lengths((x, y))
    if len(lengths) == 1 and max(lengths) > TESTED:
        # Not every net and loss can do without the rest, and each says so in its own way.
        with contextlib.suppress(Exception):
            first, targets = with_tensors((x, y), lambda tensor: tensor[:TESTED])
            answer = call(model, first)
            lost = loss is not None and y is not None and math.isnan(value_of(loss, answer, targets))
            if tensor_lengths(first_tensor(answer)) == {TESTED} and not lost:
                return first, targets, answer
    return x, y, call(model, x)


def tensor_lengths(thing: Any) -> set[int]:
    """Of all tensors in it; a single number has none, which is counted as 0."""
    return {len(each) if each.ndim else 0 for each in tensors(thing)}


def scales(outputs: torch.Tensor | None, targets: Any) -> dict[str, float]:
    """Mean, standard deviation, smallest and largest of targets that are numbers, and of the outputs."""
    if outputs is None or task_of(outputs, targets) != NUMBERS:
        return {}
    values = {"target": targets.float(), "output": outputs.float()}
    measures: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "mean": torch.mean, "std": lambda each: each.std(correction=0), "min": torch.min, "max": torch.max,
    }  # fmt: skip
    return {
        f"{name}_{what}": float(measure(each)) for name, each in values.items() for what, measure in measures.items()
    }


@torch.no_grad()
def truth_test(loss: Loss, answer: Any, outputs: torch.Tensor, y: Any) -> dict[str, float]:
    """The loss of perfect outputs, and the loss of the same outputs for targets of other samples.

    A loss that fits its task prefers the first by far. Where both are equal it compares every output with every target.
    No result where the loss does not read the targets, as that of triplets: then no outputs are perfect.
    """
    if value_of(loss, answer, y) == value_of(loss, answer, y[:1].expand_as(y)):
        return {}
    given = [replaced(answer, outputs, perfect) for perfect in perfect_outputs(outputs, y)]
    tried = [(truth, index) for index, each in enumerate(given) if math.isfinite(truth := value_of(loss, each, y))]
    if not tried:
        return {}
    truth, best = min(tried)
    others = [value_of(loss, given[best], y.roll(shift, 0)) for shift in SHIFTS if shift < len(y)]
    return {"truth": truth, "swapped": sum(others) / len(others) if others else math.nan}


@torch.no_grad()
def input_test(model: nn.Module, loss: Loss, x: Any, y: Any, answer: Any) -> dict[str, float]:
    """The loss of the probe, and with the inputs of other samples: equal where the net ignores its inputs."""
    found = {"loss": value_of(loss, answer, y)}
    if torch.is_tensor(x) and x.ndim > 1 and len(x) > max(SHIFTS):
        found["other_inputs"] = value_of(loss, call(model, x.roll(SHIFTS[0], 0)), y)
    return found


def step_test(model: nn.Module, loss: Loss, x: Any, y: Any) -> dict[str, float]:
    """Which step along the gradient lowers the loss of the probe most: its length relative to the weights; that loss.

    Beside the lengths of the updates it tells a learning rate that is too low or too high from a net that cannot move.
    """
    weights = [each for each in model.parameters() if each.requires_grad]
    with torch.enable_grad():
        before = loss(call(model, x), y).float().mean()
        gradients = torch.autograd.grad(before, weights, allow_unused=True) if before.requires_grad else ()
    pairs = zip(weights, gradients, strict=False)
    moved = [(real(weight.detach()), real(slope)) for weight, slope in pairs if slope is not None]
    if not moved:
        return {}
    size = norm(slope for _, slope in moved)
    found = {"gradient": size}
    if not (size > 0 and math.isfinite(size)):
        return found
    unit, taken, losses = norm(weight for weight, _ in moved) / size, 0.0, []
    with torch.no_grad():
        for length in LENGTHS:
            for weight, slope in moved:
                weight.sub_(slope, alpha=(length - taken) * unit)
            taken = length
            losses.append(value_of(loss, call(model, x), y))
    usable = [(value, length) for value, length in zip(losses, LENGTHS, strict=True) if math.isfinite(value)]
    best, length = min(usable, default=(math.inf, 0.0))
    return found | ({"best_step": length, "best_loss": best} if best < before.item() else {"best_step": 0.0})


def value_of(loss: Loss, answer: Any, y: Any) -> float:
    """The loss as a number; NaN where it does not take such outputs, as some refuse NaN or what is no probability."""
    try:
        return float(loss(answer, y).float().mean())
    except (RuntimeError, ValueError, IndexError, ArithmeticError):
        return math.nan


def norm(tensors: Iterable[torch.Tensor]) -> float:
    return math.sqrt(sum(float(each.double().square().sum()) for each in tensors))
