"""Validation without model.eval(): dropout goes on silencing units, and the net is judged with half its brain."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import score
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Validation loss minus the loss of training images with dropout off, in nats. Healthy runs with dropout 0.5: 0.05 to
# 0.12; with dropout left on: 0.22 (photographs) to 0.4 (digits).
APART = 0.15

healthy = Recipe(depth=3, dropout=0.5)


@torch.no_grad()
def evaluate_with_dropout(training, split) -> dict:
    """The usual scores in batches of 1000, but nobody says eval()."""
    batches = zip(split.x.split(1000), split.y.split(1000), strict=True)
    results = [score(training, x, y) for x, y in batches]
    return {name: sum(each[name] for each in results) / len(split.y) for name in results[0]}


sick = healthy.but(evaluate=evaluate_with_dropout)


def signature(run: Run) -> Evidence | None:
    modes, facts = run["val_train_mode"], run.facts
    if not facts.get("dropouts") or facts.get("batch_norms") or not (modes == 1).all():
        return None
    if not np.isfinite(run.gap[-1]) or run.gap[-1] < APART:
        return None
    return Evidence(
        seen=f"{len(facts['dropouts'])} dropout layers were on at every validation; the loss there is "
        f"{run['val_loss'][-1]:.2f}, on training images with dropout off {run['probe_loss'][-1]:.2f}",
        usual="dropout off at both, and losses that differ by 0.1 or so",
        onset=int(run["val_step"][0]),
        place=facts["dropouts"][0],
        confidence=0.92,
    )


failure = FailureMode(
    title="Dropout on at validation",
    healthy=healthy,
    sick=sick,
    cures={
        "model.eval() before validation": sick.but(evaluate="plain_evaluate"),
        "no dropout": sick.but(dropout=0.0),
    },
    false_cures={"weight decay 0.001, as if it were overfitting: 85 %": sick.but(weight_decay=0.001)},
    signature=signature,
    harm=0.03,
    costs="Five points of accuracy that are only misread: the weights are the same as those of the healthy twin.",
    symptom="The validation accuracy is several points too low, and two validations of the very same net disagree.",
    mechanism="In train mode dropout draws a new mask for every pass, so each image is judged by a random half of the "
    "net. The weights are as good as ever: only the judgement is noisy and too harsh.",
    first_check="Validate twice without training in between: any difference means that something random is still on.",
    remedy="Call model.eval() before validation and model.train() after it. Averaging many such passes is a method of "
    "its own (Monte Carlo dropout), a single one is a mistake.",
    reference="Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting (2014)",
    looks="validation worse",
    shows="val_accuracy",
    knobs=(Knob("dropout", (0.0, 0.9)), Knob("width", (32, 512), log=True)),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
