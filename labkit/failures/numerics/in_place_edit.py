"""A tensor is changed in place, but the backward pass needs its old values: PyTorch raises an error."""

from collections import OrderedDict

import torch
from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import models
from labkit.training.recipe import Recipe

WORDS = "modified by an inplace operation"  # PyTorch's message, unique to this error


class Gate(nn.Module):
    """A sigmoid gate on the pixels: x times a learned factor between 0 and 2, which starts at 1."""

    def __init__(self, features: int):
        super().__init__()
        self.openness = nn.Parameter(torch.zeros(features))

    def forward(self, x):
        return x.flatten(1) * (2 * torch.sigmoid(self.openness))


class InPlaceGate(Gate):
    """The same, but doubled in place: this overwrites the values that the derivative of the sigmoid needs."""

    def forward(self, x):
        return x.flatten(1) * torch.sigmoid(self.openness).mul_(2)


def gated(gate, recipe, data):
    features = data.train.x[0].numel()
    return nn.Sequential(OrderedDict(gate=gate(features), net=models.mlp(recipe, data)))


def gate_doubled(recipe, data):
    """A perceptron after a gate."""
    return gated(Gate, recipe, data)


def gate_doubled_in_place(recipe, data):
    """The same, with mul_() instead of a multiplication."""
    return gated(InPlaceGate, recipe, data)


healthy = Recipe(model=gate_doubled, steps=200)
sick = healthy.but(model=gate_doubled_in_place)


def signature(run: Run) -> Evidence | None:
    error = run.facts.get("error") or {}
    if WORDS not in error.get("message", ""):
        return None
    return Evidence(
        seen=f"{error['kind']} in step {error['step']}: {error['message'].split(';')[0]}",
        usual="0 errors: tensors saved by autograd stay unchanged until backward() has used them",
        onset=error["step"],
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="In-place edit",
    cures={"no underscore: a new tensor": sick.but(model=gate_doubled)},
    false_cures={
        "a lower learning rate: the error comes before the first update": sick.but(lr=0.01),
        "another optimizer": sick.but(optimizer="adam"),
    },
    harm=0.8,
    symptom="The forward pass and validation work; the first backward pass raises a RuntimeError about a "
    "variable that was modified by an inplace operation.",
    mechanism="The derivative of a sigmoid is computed from its output, which autograd saves. mul_() overwrites it; a "
    "version counter notices, and PyTorch raises an error instead of a wrong gradient.",
    formula=r"\sigma'(z) = s (1 - s), \quad s = \sigma(z) \text{ was overwritten}",
    first_check="torch.autograd.set_detect_anomaly(True): the error then names the line of the forward pass.",
    remedy="Write y = y * 2, not y.mul_(2) or y *= 2, on the output of a sigmoid, tanh, exp or softmax. "
    "Editing x.data or under no_grad silences the error and makes the gradient wrong instead.",
    reference="Paszke et al., PyTorch: An Imperative Style, High-Performance Deep Learning Library (2019), section 4.3",
    looks="error",
    shows="origin",
    knobs=(Knob("lr", (0.01, 0.3), log=True), Knob("optimizer", ("sgd", "adam"))),
    raises=True,
)
