"""Hidden layers kept in a plain Python list: they compute, but the net does not know that they are its own."""

import itertools
import math

from torch import nn

from labkit.training import models
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# The loss on the same images at the end over the one at the start. Healthy runs of 200 steps end at 0.04 on
# digits; with hidden layers that never learn, at 0.4, and at 0.95 on photographs.
LEFT = 0.2


class Stack(nn.Module):
    """A perceptron whose hidden layers stand in a container of the caller's choice."""

    def __init__(self, recipe, data, container):
        super().__init__()
        sizes = [math.prod(data.train.x.shape[1:]), *[recipe.width] * (recipe.depth - 1)]
        # Made where the data are: what stands in a plain list, .to(device) would not move either.
        made = {"device": data.train.x.device}
        self.hidden = container([nn.Linear(*pair, **made) for pair in itertools.pairwise(sizes)])
        self.activation = models.ACTIVATIONS[recipe.activation]()
        self.head = nn.Linear(sizes[-1], data.classes)

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.hidden:
            x = self.activation(layer(x))
        return self.head(x)


def hidden_layers_in_a_module_list(recipe, data) -> nn.Module:
    """As it should be: nn.ModuleList tells the net about each layer in it."""
    return Stack(recipe, data, nn.ModuleList)


def hidden_layers_in_a_list(recipe, data) -> nn.Module:
    """The same net with a plain list: parameters() finds the head alone."""
    return Stack(recipe, data, list)


healthy = Recipe(model=hidden_layers_in_a_module_list, depth=3, steps=200)
sick = healthy.but(model=hidden_layers_in_a_list)


def signature(run: Run) -> Evidence | None:
    strangers = run.facts.get("unregistered") or []
    losses = fixed_loss(run)
    if not strangers or len(losses) < 2 or losses[-1] < LEFT * losses[0]:
        return None
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in strangers[:4])
    return Evidence(
        seen=f"the loss depends on {len(strangers)} trainable tensors that are not among the net's parameters "
        f"({shapes}{', ...' if len(strangers) > 4 else ''}), and it went from {losses[0]:.2f} to {losses[-1]:.2f} only",
        usual="0 such tensors",
        onset=0,
        place=f"a tensor of shape {' x '.join(map(str, strangers[-1]))}",
        confidence=0.96,
    )


failure = FailureMode(
    title="Unregistered layers",
    healthy=healthy,
    sick=sick,
    cures={"nn.ModuleList instead of a list": sick.but(model=hidden_layers_in_a_module_list)},
    false_cures={
        "twice as many steps: 75 % instead of 93": sick.but(steps=400),
        "Adam: 70 %": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.15,
    symptom="The net learns a little and stops early. The parameter count is far too small, and the checkpoint lacks "
    "layers that are plainly there in forward().",
    mechanism="nn.Module finds its layers by looking at its attributes. What hides in a Python list or dict is not "
    "found: parameters() leaves it out, so the optimizer never moves it, .to(device) leaves it behind, and "
    "state_dict() forgets it.",
    first_check="Print the net, or sum(p.numel() for p in model.parameters()), and compare with your own count.",
    remedy="Put layers into nn.ModuleList, nn.ModuleDict or nn.Sequential, and loose tensors into nn.Parameter.",
    reference="PyTorch documentation, torch.nn.ModuleList (2.13)",
    looks="stops too high",
    shows="probe_loss",
    where=("a tensor of shape {width}",),
    knobs=(Knob("depth", (2, 6)), Knob("width", (16, 512), log=True), Knob("lr", (0.01, 1.0), log=True)),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
