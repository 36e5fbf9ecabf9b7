"""What a net is asked to predict, read from its outputs and the targets, and what perfect outputs would be."""

import torch
from torch.nn.functional import one_hot

from labkit.recording.facts import TASKS

# One class per sample, per position, per pixel; one question of yes or no per sample, or several; numbers.
CLASSES, TOKENS, PIXELS, YES_NO, LABELS, NUMBERS, UNKNOWN = TASKS
# Logits of a perfect prediction. Several, because no single one suits all losses: cross-entropy wants large ones, label
# smoothing and squared errors small ones.
LOGITS = (3.0, 6.0, 20.0)
ALMOST = 1e-6  # a probability as near to 0 or 1 as losses that take its logarithm can bear


def class_axis(outputs: torch.Tensor, targets: torch.Tensor) -> int | None:
    """The axis of the outputs that stands for classes: the last, or the second as torch's own losses have it."""
    if targets.ndim != outputs.ndim - 1:
        return None
    if targets.shape == outputs.shape[:-1] and outputs.shape[-1] > 1:
        return -1
    fits = outputs.ndim > 2 and targets.shape == (outputs.shape[0], *outputs.shape[2:]) and outputs.shape[1] > 1
    return 1 if fits else None


def task_of(outputs: torch.Tensor | None, targets: object) -> str:
    """Which of TASKS it is."""
    if not (torch.is_tensor(targets) and torch.is_tensor(outputs) and outputs.is_floating_point() and targets.numel()):
        return UNKNOWN
    axis = None if targets.is_floating_point() else class_axis(outputs, targets)
    if axis is not None:  # a number that no output stands for is that of a sample or a group, not of a class
        return {1: CLASSES, 2: TOKENS}.get(targets.ndim, PIXELS) if targets.max() < outputs.shape[axis] else UNKNOWN
    if targets.numel() != outputs.numel():
        return UNKNOWN
    if bool(((targets == 0) | (targets == 1)).all()):
        return YES_NO if targets.numel() == len(targets) else LABELS
    return NUMBERS if targets.is_floating_point() else UNKNOWN


def perfect_outputs(outputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    """Outputs that predict the targets perfectly: as logits, as probabilities, as their logarithms, or as numbers.

    Which of them a loss expects cannot be seen, so all are returned; none for a task that is not known.
    """
    task, axis = task_of(outputs, targets), class_axis(outputs, targets)
    if task == NUMBERS:
        numbers = targets.reshape(outputs.shape).to(outputs.dtype)
        # Counts and the like are often predicted as their logarithm, as the Poisson loss expects it.
        return [numbers] if bool((numbers < 0).any()) else [numbers, numbers.clamp_min(ALMOST).log()]
    if task == UNKNOWN:
        return []
    if task in (YES_NO, LABELS):
        truth = targets.reshape(outputs.shape).to(outputs.dtype)
        logits = [size * (2 * truth - 1) for size in LOGITS]
    else:
        assert axis is not None
        known = targets.clamp(0, outputs.shape[axis] - 1).long()  # -100 and the like: left out of the loss anyway
        truth = one_hot(known, outputs.shape[axis]).movedim(-1, axis).to(outputs.dtype)
        logits = [size * truth for size in LOGITS]
    likely = truth.clamp(ALMOST, 1 - ALMOST)
    perfect = [*logits, truth, likely, likely.log()]
    if task != TOKENS:
        return perfect
    # A loss may shift the targets itself, as those of language models do whose labels are their inputs.
    places = 1 if axis == -1 else 2
    return perfect + [each.roll(-1, places) for each in perfect]
