"""Validation without model.eval(): batch norm takes its statistics from validation batches of a single class."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training.parts import score
from labkit.training.recipe import Recipe

# Validation loss minus the smoothed training loss, in nats. Healthy runs with batch norm: 0.06 to 0.13; sorted
# batches in train mode: 1.3 (photographs) to 3 (digits). Large mixed batches hide the bug and do no harm.
APART = 0.6

healthy = Recipe(depth=3, normalisation="batch", steps=200)


@torch.no_grad()
def evaluate_in_train_mode(training, split) -> dict:
    """The usual scores, class by class as in the folders on disk, without calling model.eval()."""
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
        usual="eval mode at validation, and losses that differ by at most 0.2",
        onset=int(run["val_step"][0]),
        place=run.facts["batch_norms"][0],
        confidence=0.93,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Batch norm in train mode at validation",
    cures={
        "model.eval() before validation": sick.but(evaluate="plain_evaluate"),
        "layer norm, which normalises each image on its own": sick.but(normalisation="layer"),
    },
    false_cures={
        "weight decay 0.01, as if the net were overfitting: 25 %": sick.but(weight_decay=0.01),
        "dropout 0.5, for the same reason: 23 %": sick.but(dropout=0.5),
    },
    harm=0.5,
    symptom="The training loss is excellent and the validation loss is terrible. The validation result depends on the "
    "order and size of the batches.",
    mechanism="In train mode batch norm subtracts the mean of the current batch. In a batch of one class, that mean "
    "is what distinguishes the class, so normalisation removes it. Each pass also updates the running statistics, and "
    "no_grad() does not prevent it.",
    formula=r"\hat{x} = \frac{x - \mu_{\text{batch}}}{\sigma_{\text{batch}}} \quad \text{instead of} \quad "
    r"\frac{x - \mu_{\text{running}}}{\sigma_{\text{running}}}",
    first_check="model.training during validation: it must be False. Then shuffle the validation set and compare.",
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
)
