"""A tensor changed in place after the backward pass was promised its old values: PyTorch stops with an error."""

from collections import OrderedDict

import torch
from torch import nn

from labkit.training import models
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

WORDS = "modified by an inplace operation"  # as PyTorch says it, and for nothing else


class Gate(nn.Module):
    """A sigmoid gate on the pixels: x times a learned share between 0 and 1, doubled to start near 1."""

    def __init__(self, features: int):
        super().__init__()
        self.openness = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return x.flatten(1) * (2 * torch.sigmoid(self.openness))


class EditedGate(Gate):
    """The same; but the share is doubled in place, over the values that the slope of the sigmoid needs."""

    def forward(self, x):
        return x.flatten(1) * torch.sigmoid(self.openness).mul_(2)


def gated(gate, recipe, data):
    features = data.train.x[0].numel()
    return nn.Sequential(OrderedDict(gate=gate(features), net=models.mlp(recipe, data)))


def gate_doubled(recipe, data):
    """A perceptron behind a gate."""
    return gated(Gate, recipe, data)


def gate_doubled_in_place(recipe, data):
    """The same, with an underscore more."""
    return gated(EditedGate, recipe, data)


healthy = Recipe(model=gate_doubled, steps=200)
sick = healthy.but(model=gate_doubled_in_place)


def signature(run: Run) -> Evidence | None:
    error = run.facts.get("error") or {}
    if WORDS not in error.get("message", ""):
        return None
    return Evidence(
        seen=f"{error['kind']} in step {error['step']}: {error['message'].split(';')[0]}",
        usual="0 errors: what autograd has saved is left as it was until backward() has used it",
        onset=error["step"],
        confidence=0.98,
    )


failure = FailureMode(
    title="In-place edit",
    healthy=healthy,
    sick=sick,
    cures={"without the underscore: a new tensor": sick.but(model=gate_doubled)},
    false_cures={
        "a lower learning rate: it stops before the first update": sick.but(lr=0.01),
        "another optimizer": sick.but(optimizer="adam"),
    },
    signature=signature,
    harm=0.8,
    symptom="The forward pass works and so does validation; the first backward pass stops with a RuntimeError about a "
    "variable that was modified by an inplace operation.",
    mechanism="The slope of a sigmoid is computed from its output, which autograd keeps. mul_() writes over it; a "
    "version counter notices, and PyTorch prefers an error to a wrong gradient.",
    first_check="torch.autograd.set_detect_anomaly(True): the error then names the line of the forward pass.",
    remedy="Write y = y * 2, not y.mul_(2) or y *= 2, on anything that came out of a sigmoid, tanh, exp or softmax. "
    "Editing x.data or under no_grad silences the error and makes the gradient wrong instead.",
    reference="Paszke et al., PyTorch: An Imperative Style, High-Performance Deep Learning Library (2019), section 4.3",
    looks="error",
    shows="origin",
    knobs=(Knob("lr", (0.01, 0.3), log=True), Knob("optimizer", ("sgd", "adam"))),
    raises=True,
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
