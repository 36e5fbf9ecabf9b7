"""requires_grad is off for all layers but the last: the net must do with the features it was born with."""

import torch

from labkit.training import models
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# The loss on the same images at the end over the one at the start. Healthy runs of 200 steps end at 0.04 on
# digits; frozen ones at 0.4, and at 0.95 on photographs. Frozen layers that do no harm (a good
# pretrained body) are no failure.
LEFT = 0.2

healthy = Recipe(depth=3, steps=200)


def mlp_with_frozen_body(recipe, data) -> torch.nn.Module:
    """The plain net, but only its last layer may learn, as if a pretrained body had been loaded."""
    net = models.mlp(recipe, data)
    for number in range(1, recipe.depth):
        net.get_submodule(f"layer{number}").requires_grad_(False)
    return net


sick = healthy.but(model=mlp_with_frozen_body)


def signature(run: Run) -> Evidence | None:
    silent = [name for name in run.parameters if name in run.facts.get("without_gradient", ())]
    losses = fixed_loss(run)
    if not silent or len(silent) == len(run.parameters) or len(losses) < 2 or losses[-1] < LEFT * losses[0]:
        return None
    return Evidence(
        seen=f"{len(silent)} of {len(run.parameters)} parameter tensors never had a gradient ({', '.join(silent)}); "
        f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f} only",
        usual="0 without a gradient",
        onset=0,
        place=silent[0],
        confidence=0.95,
    )


failure = FailureMode(
    title="Frozen layers",
    healthy=healthy,
    sick=sick,
    cures={"requires_grad on for every layer": sick.but(model="mlp")},
    false_cures={
        "ten times the learning rate: 78 % instead of 93": sick.but(lr=1.0),
        "twice as many steps: 75 %": sick.but(steps=400),
        "Adam: 70 %": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.15,
    symptom="The net learns, but slowly and not far: it stops well below the accuracy that its size should give. "
    "No error is raised.",
    mechanism="With requires_grad off, backward goes around a layer and its gradient stays None. The layers above "
    "it learn to read random features as well as these can be read.",
    first_check="List the parameters whose .grad is None after a backward, or whose requires_grad is False.",
    remedy="Set requires_grad to True for what is meant to learn, before the optimizer is built. To use frozen layers "
    "on purpose, make sure that they were trained: a body from a checkpoint, not one from the dice.",
    reference="Yosinski et al., How transferable are features in deep neural networks? (2014)",
    looks="stops too high",
    shows="grad_norm",
    where=("layer1", "layer2"),
    knobs=(Knob("width", (16, 512), log=True), Knob("depth", (2, 6)), Knob("lr", (0.01, 1.0), log=True)),
    cifar10={"momentum": 0.0},  # with momentum, LR 0.1 is itself too high for these larger inputs
)
