"""Validation without model.eval(): batch norm takes its statistics from validation batches that hold one class."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import score
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Validation loss minus the smoothed training loss, in nats. Healthy runs with batch norm: 0.07 to 0.13; sorted
# batches in train mode: 1.3 (photographs) to 4.8 (digits). Large mixed batches hide the bug: then there is no harm.
APART = 0.6

healthy = Recipe(depth=3, normalisation="batch", steps=200)


@torch.no_grad()
def evaluate_in_train_mode(training, split) -> dict:
    """The usual scores, class after class as the folders lie on the disk, and nobody says eval()."""
    order = split.y.argsort(stable=True).split(training.recipe.batch_size)
    results = [score(training, split.x[batch], split.y[batch]) for batch in order]
    return {name: sum(each[name] for each in results) / len(split.y) for name in results[0]}


sick = healthy.but(evaluate=evaluate_in_train_mode)


def signature(run: Run) -> Evidence | None:
    modes, losses = run["val_train_mode"], run["val_loss"]
    if not run.facts.get("batch_norms") or not (modes == 1).all() or not np.isfinite(run["loss"]).all():
        return None
    apart = losses[-1] - run.smoothed()[-1]
    if not apart > APART:
        return None
    return Evidence(
        seen=f"{len(run.facts['batch_norms'])} batch norms were in train mode at every validation; the validation loss "
        f"is {losses[-1]:.2f}, the training loss {losses[-1] - apart:.2f}",
        usual="eval mode there, and losses that differ by 0.2 at most",
        onset=int(run["val_step"][0]),
        place=run.facts["batch_norms"][0],
        confidence=0.93,
    )


failure = FailureMode(
    title="Batch norm in train mode at validation",
    healthy=healthy,
    sick=sick,
    cures={
        "model.eval() before validation": sick.but(evaluate="plain_evaluate"),
        "layer norm, which looks at one image at a time": sick.but(normalisation="layer"),
    },
    false_cures={
        "weight decay 0.01, as if it were overfitting: 23 %": sick.but(weight_decay=0.01),
        "dropout 0.5, for the same reason: 23 %": sick.but(dropout=0.5),
    },
    signature=signature,
    harm=0.5,
    symptom="The training loss is excellent and the validation a disaster; and the validation result depends on the "
    "order and the size of its batches.",
    mechanism="In train mode batch norm subtracts the mean of the batch at hand. In a batch of one class that mean is "
    "just what tells the class from the others, so the answer itself is normalised away. Each pass also drags the "
    "running statistics along, and no_grad() does not prevent it.",
    first_check="model.training inside the validation: it must be False. Then shuffle the validation set and compare.",
    remedy="Call model.eval() before validation and model.train() after it. Large shuffled batches only hide the bug.",
    reference="Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal "
    "Covariate Shift (2015)",
    looks="validation worse",
    shows="val_loss",
    knobs=(
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("batch_size", (16, 512), log=True),
        Knob("dropout", (0.0, 0.9)),
    ),
    cifar10={"momentum": 0.0},  # as the other nets there
)
