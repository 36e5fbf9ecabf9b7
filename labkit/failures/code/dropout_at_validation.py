"""Validation without model.eval(): dropout stays on, and the net is evaluated with half of its units."""

import numpy as np
import torch

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss
from labkit.training.parts import score
from labkit.training.recipe import Recipe

# Validation loss minus the loss on training images with dropout off, in nats. Healthy runs with dropout 0.5: 0.06 to
# 0.1; with dropout left on: 0.21 (digits) to 0.24 (photographs).
APART = 0.15
# With rates of at least STRONG the gap over the loss of a constant prediction is enough, batch norm or not: 0.07 to 0.1
# in small programs of classes and images. Healthy programs never validate in train mode.
STRONG, SOME = 0.3, 0.03

healthy = Recipe(depth=3, dropout=0.5)


@torch.no_grad()
def evaluate_with_dropout(training, split) -> dict:
    """The usual scores in batches of 1000, without calling model.eval()."""
    batches = zip(split.x.split(1000), split.y.split(1000), strict=True)
    results = [score(training, x, y) for x, y in batches]
    return {name: sum(each[name] for each in results) / len(split.y) for name in results[0]}


sick = healthy.but(evaluate=evaluate_with_dropout)


def signature(run: Run) -> Evidence | None:
    modes, facts = run["val_train_mode"], run.facts
    if not facts.get("dropouts") or not (modes == 1).all() or not np.isfinite(run.gap[-1]):
        return None
    strong = max(facts.get("dropout_rates") or [0.0]) >= STRONG and run.gap[-1] > SOME * chance_loss(run)
    if not strong and (facts.get("batch_norms") or run.gap[-1] < APART):
        return None
    return Evidence(
        seen=f"{len(facts['dropouts'])} dropout layers were on at every validation; the loss there is "
        f"{run['val_loss'][-1]:.2f}, on training images with dropout off {run['probe_loss'][-1]:.2f}",
        usual="dropout off in both cases, and losses that differ by about 0.1",
        onset=int(run["val_step"][0]),
        place=facts["dropouts"][0],
        confidence=0.92,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Dropout on at validation",
    cures={
        "model.eval() before validation": sick.but(evaluate="plain_evaluate"),
        "no dropout": sick.but(dropout=0.0),
    },
    false_cures={"weight decay 0.001, as if the net were overfitting: 88 %": sick.but(weight_decay=0.001)},
    harm=0.03,
    costs="Four points of reported accuracy. Only the measurement is wrong: the weights match the healthy twin's.",
    symptom="The validation accuracy is several points too low, and two validations of the same net disagree.",
    mechanism="In train mode dropout draws a new mask at every pass, so each image is classified by a random half of "
    "the net. The weights are fine: only the evaluation is noisy and too pessimistic.",
    formula=r"\hat{y}(x, m) \neq \hat{y}(x, m') \quad \text{for two random masks } m, m'",
    first_check="Validate twice without training in between: any difference means that something random is still on.",
    remedy="Call model.eval() before validation and model.train() after it. Averaging many such passes is a method of "
    "its own (Monte Carlo dropout); a single pass is a mistake.",
    reference="Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting (2014)",
    looks="validation worse",
    shows="val_accuracy",
    knobs=(Knob("dropout", (0.0, 0.9)), Knob("width", (32, 512), log=True)),
    classic=ClassicCurve(10, "is fine in training and too high in validation"),
)
