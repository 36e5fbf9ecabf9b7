"""Hidden layers in a plain Python list: they compute, but they are not registered as part of the net."""

import itertools
import math

from torch import nn

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss
from labkit.training import models
from labkit.training.recipe import Recipe

# The loss on the same images, at the end over at the start. Healthy runs of 200 steps end at 0.1 to 0.12
# on digits; with hidden layers that never learn, at 0.82, and at 0.95 on photographs.
LEFT = 0.2


class Stack(nn.Module):
    """A perceptron that keeps its hidden layers in the given type of container."""

    def __init__(self, recipe, data, container):
        super().__init__()
        sizes = [math.prod(data.train.x.shape[1:]), *[recipe.width] * (recipe.depth - 1)]
        # Created on the device of the data: .to(device) does not move layers in a plain list either.
        device = {"device": data.train.x.device}
        self.hidden = container([nn.Linear(*pair, **device) for pair in itertools.pairwise(sizes)])
        self.activation = models.ACTIVATIONS[recipe.activation]()
        self.head = nn.Linear(sizes[-1], data.classes)

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.hidden:
            x = self.activation(layer(x))
        return self.head(x)


def hidden_layers_in_a_module_list(recipe, data) -> nn.Module:
    """The correct way: nn.ModuleList registers each layer in it."""
    return Stack(recipe, data, nn.ModuleList)


def hidden_layers_in_a_list(recipe, data) -> nn.Module:
    """The same net with a plain list: parameters() only finds the head."""
    return Stack(recipe, data, list)


healthy = Recipe(model=hidden_layers_in_a_module_list, depth=3, steps=200)
sick = healthy.but(model=hidden_layers_in_a_list)


def signature(run: Run) -> Evidence | None:
    missing = run.facts.get("unregistered") or []
    losses = fixed_loss(run)
    if not missing or len(losses) < 2 or losses[-1] < LEFT * losses[0]:
        return None
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in missing[:4])
    return Evidence(
        seen=f"the loss depends on {len(missing)} trainable tensors that are not among the net's parameters "
        f"({shapes}{', ...' if len(missing) > 4 else ''}), and it only went from {losses[0]:.2f} to {losses[-1]:.2f}",
        usual="0 such tensors",
        onset=0,
        place=f"a tensor of shape {' x '.join(map(str, missing[-1]))}",
        confidence=0.96,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Unregistered layers",
    cures={"nn.ModuleList instead of a list": sick.but(model=hidden_layers_in_a_module_list)},
    false_cures={
        "twice as many steps: 66 % instead of 91 %": sick.but(steps=400),
        "Adam: 69 %": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.15,
    symptom="The net learns a little and stops early. The parameter count is far too small, and the checkpoint lacks "
    "layers that forward() uses.",
    mechanism="nn.Module finds its layers among its attributes. It does not look inside a Python list or dict: "
    "parameters() omits these layers, so the optimizer never updates them, .to(device) does not move them, and "
    "state_dict() does not save them.",
    formula=r"\theta_{\text{hidden}} \notin \text{parameters}() \quad \Rightarrow \quad \theta_{\text{hidden}}(t) "
    r"= \theta_{\text{hidden}}(0)",
    first_check="Print the net, or sum(p.numel() for p in model.parameters()), and compare with your own count.",
    remedy="Put layers into nn.ModuleList, nn.ModuleDict or nn.Sequential, and single tensors into nn.Parameter.",
    reference="PyTorch documentation, torch.nn.ModuleList (2.13)",
    looks="stops too high",
    shows="probe_loss",
    where=("a tensor of shape {width}",),
    knobs=(Knob("depth", (2, 6)), Knob("width", (16, 512), log=True), Knob("lr", (0.01, 1.0), log=True)),
    not_in_ward="no curve shows it: the layers are not registered, so the instruments do not record them",
)
