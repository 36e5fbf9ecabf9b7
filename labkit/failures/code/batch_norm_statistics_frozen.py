"""Batch norm with momentum 0: the running statistics stay at mean 0 and variance 1, and eval mode uses them."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import NoTrace, Run
from labkit.recording.summaries import late_loss
from labkit.training import models
from labkit.training.recipe import Recipe

STEPS = 10  # in train mode: each of them should have moved the statistics
# Share of the fall of the training loss that is lost in eval mode; a ratio, so it has no unit. Measured on digits and
# photographs, 3 to 8 layers, SGD, momentum and Adam. Statistics that never move: 0.25 to 0.97. Healthy runs with batch
# norm: -0.15 to 0.08, once 0.42 (photographs), but their statistics move.
WASTED = 0.2

healthy = Recipe(depth=5, normalisation="batch", inputs="unit", steps=200)


def mlp_with_momentum_0(recipe, data) -> torch.nn.Module:
    """The plain net, but each batch gets a weight of 0 in the running statistics of its batch norms."""
    net = models.mlp(recipe, data)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.momentum = 0.0
    return net


sick = healthy.but(model=mlp_with_momentum_0)


def loss_in_eval_mode(run: Run) -> float:
    """At the end: on training samples, or at a validation in eval mode where there is no probe."""
    if "probe_loss" in run:
        return float(run["probe_loss"][-1])
    if run["val_train_mode"][-1] > 0:
        raise NoTrace("this run has no loss in eval mode")
    return float(run["val_loss"][-1])


def signature(run: Run) -> Evidence | None:
    frozen = run.facts.get("batch_norms_unmoved") or ()
    if not frozen or np.sum(run["train_mode"] == 1) < STEPS:
        return None
    first, trained, evaluated = float(run["loss"][0]), late_loss(run), loss_in_eval_mode(run)
    if not np.isfinite(first) or not trained < first or evaluated - trained <= WASTED * (first - trained):
        return None
    return Evidence(
        seen=f"the running statistics of {len(frozen)} of {len(run.facts['batch_norms'])} batch norms have not changed "
        f"in {len(run)} steps; the loss is {trained:.2g} in train mode and {evaluated:.2g} in eval mode",
        usual="statistics that change at every step, and losses that differ by at most 0.1",
        onset=0,
        place=frozen[0],
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Batch norm statistics frozen",
    # Layer norm has no running statistics either, but after 200 steps it ends up to 5 points below the twin (5 seeds).
    cures={"momentum 0.1, PyTorch's default": sick.but(model=models.mlp)},
    false_cures={
        "weight decay 0.01, as if the net were overfitting: 10 to 20 %": sick.but(weight_decay=0.01),
        "twice as many steps: 35 to 48 %": sick.but(steps=400),
    },
    harm=0.25,
    symptom="The training loss is excellent, but in eval mode the same net fails, even on its own training images.",
    mechanism="In train mode batch norm uses the statistics of the batch, in eval mode the running ones. PyTorch's "
    "momentum is the weight of the new statistics, so with 0 the running mean stays at 0 and the variance at 1, which "
    "fit no layer. The error multiplies from layer to layer.",
    formula=r"\mu \leftarrow (1 - m) \, \mu + m \, \mu_{\text{batch}}, \qquad m = 0 \Rightarrow \mu = 0, \ "
    r"\sigma^2 = 1",
    first_check="running_mean and running_var of one batch norm after a few steps: they should no longer be 0 and 1.",
    remedy="Set momentum to 0.1, or to None for a plain average. In TensorFlow and Keras momentum is the weight of the "
    "old statistics: their 0.99 is PyTorch's 0.01. To repair a trained net, set the momentum and run training images "
    "through it in train mode.",
    reference="Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal "
    "Covariate Shift (2015)",
    looks="validation worse",
    shows="probe_loss",
    knobs=(
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("depth", (2, 8)),
        Knob("inputs", ("normalised", "unit", "raw")),
    ),
    # On photographs, pixels from 0 to 1 overshoot at LR 0.1; with 5 layers the sick net keeps 25 to 34 %.
    cifar10={"inputs": "normalised", "lr": 0.05, "depth": 8},
    depends_on=("normalisation",),
)
