"""Gradients are clipped before they are unscaled: the threshold meets gradients that are 65,536 times too large."""

from math import floor, log10

import numpy as np
from torch import Tensor

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import clipped_to, left_over, tested
from labkit.recording.run import Run
from labkit.training.recipe import Recipe
from labkit.training.state import TrainingState

SCALED = 2.0  # the loss scale; GradScaler begins at 65,536, and 1 is no scaling
# Thresholds are chosen by people, so they are round: 0.1, 0.5, 1, 5. The norm of the gradients times the loss scale is
# such a number within 1e-6 here; a threshold of 0.0001 that is applied after unscaling gives 6.5536 instead.
ROUND = 1e-3
# What is left of the loss of a constant prediction, healthy 0.1 to 0.2, sick 0.99 to 1.01, and the gradient on the
# probe over the gradient that is used: healthy 0.3 to 3, sick 70,000 and more.
LEFT, LARGER = 0.5, 100.0

# A CPU only emulates 16 bits, and slowly: a narrow net and fewer steps than elsewhere.
healthy = Recipe(width=64, precision="fp16", loss_scale="dynamic", lr=0.2, clip=1.0, steps=150, evaluate_every=10)


def clip_then_unscale(training: TrainingState, x: Tensor, y: Tensor) -> None:
    """clip_grad_norm_ without scaler.unscale_ before it: GradScaler unscales afterwards, in its own step."""
    training.optimizer.zero_grad()
    loss = training.loss(x, y)
    training.scaler.scale(loss).backward()
    training.clip()
    training.scaler.unscale_(training.optimizer)
    training.look(loss, x, y)
    training.update()


sick = healthy.but(step=clip_then_unscale)


def is_round(value: float) -> bool:
    """Is it a multiple of half a power of ten, such as 0.1, 0.25 or 5?"""
    units = 2 * value / 10.0 ** floor(log10(value))
    return abs(units - round(units)) < ROUND * units


def signature(run: Run) -> Evidence | None:
    scale, tests = float(np.median(run["loss_scale"])), tested(run)
    if not scale > SCALED or not left_over(run) > LEFT:
        return None
    threshold = clipped_to(run, run["grad_norm_total"] * run["loss_scale"])
    if not threshold or not is_round(threshold) or not tests.get("gradient", 0.0) > LARGER * threshold / scale:
        return None
    return Evidence(
        seen=f"the gradient has a norm of {threshold / scale:.3g} at nearly every step, which is {threshold:.3g} over "
        f"the loss scale of {scale:,.0f}; on the probe it is {tests['gradient']:.2g}",
        usual="a gradient that is clipped to the threshold itself, such as 1, and not at every step",
        onset=0,
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Clipped before unscaling",
    cures={
        "scaler.unscale_(optimizer), then clip": sick.but(step="plain_step"),
        "no clipping": sick.but(clip=None),
    },
    false_cures={
        "ten times the learning rate": sick.but(lr=2.0),
        "ten times the threshold": sick.but(clip=10.0),
    },
    harm=0.6,
    symptom="The loss hardly moves. Without mixed precision, or without clipping, the same loop trains.",
    mechanism="GradScaler multiplies the loss by 65,536, and with it every gradient. Clipped to 1 and then divided by "
    "65,536, every gradient has a length of 0.000015. Adam divides that out again, SGD does not.",
    formula=r"\frac{1}{65536} \cdot \frac{65536 \, g}{\lVert 65536 \, g \rVert} = \frac{g}{65536 \, \lVert g \rVert}",
    first_check="The gradient norm just before optimizer.step(): the same tiny number at every step.",
    remedy="Call scaler.unscale_(optimizer) between backward and clip_grad_norm_. GradScaler then knows, and does not "
    "unscale twice.",
    reference="PyTorch, Automatic Mixed Precision examples: working with unscaled gradients (2020)",
    looks="never moves",
    shows="grad_norm_total",
    knobs=(
        Knob("clip", (None, 0.1, 1.0, 10.0)),
        Knob("lr", (0.01, 10.0), log=True),
        Knob("optimizer", ("sgd", "adam")),
        Knob("steps", (50, 400)),
    ),
    also_causes=("clipping_too_tight", "learning_rate_too_low", "learning_rate_left_low"),
)
