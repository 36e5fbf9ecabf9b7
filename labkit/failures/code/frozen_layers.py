"""requires_grad is off for all layers except the last: the net only has the random features of its init."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import left_over
from labkit.recording.meters import layer_of
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, matrix_names
from labkit.training import models
from labkit.training.recipe import Recipe

# The loss on the same images, at the end over at the start. Healthy runs of 200 steps end at 0.1 to 0.12 on digits;
# frozen ones at 0.82, and at 0.95 on photographs; small programs with a frozen body at 0.66 to 1. Frozen layers that do
# no harm (a pretrained body) are no failure. An adapter beside a frozen projection keeps 0.6 where labels are noisy,
# but more than one weight matrix is TRAINED there: the net is no linear function of random features.
LEFT, TRAINED = 0.4, 1
# The share of the loss of a constant prediction that is left on the probe. Below it the random features suffice, as
# they do for classes that lie apart (0.08); here 0.7, and 0.9 on photographs.
SUFFICE = 0.15

healthy = Recipe(depth=3, steps=200)


def mlp_with_frozen_body(recipe, data) -> torch.nn.Module:
    """The plain net, but only its last layer is trainable, as if a pretrained body had been loaded."""
    net = models.mlp(recipe, data)
    for number in range(1, recipe.depth):
        net.get_submodule(f"layer{number}").requires_grad_(False)
    return net


sick = healthy.but(model=mlp_with_frozen_body)


def signature(run: Run) -> Evidence | None:
    frozen = [name for name in run.parameters if name in run.facts.get("without_gradient", ())]
    losses = fixed_loss(run)
    if not run.facts.get("never_trained", frozen):  # a body that was trained before is frozen on purpose
        return None
    if not frozen or len(frozen) == len(run.parameters) or len(losses) < 2 or losses[-1] < LEFT * losses[0]:
        return None
    if left_over(run) < SUFFICE:
        return None
    if len(matrix_names(run) - {layer_of(name) for name in frozen}) > TRAINED:
        return None
    return Evidence(
        seen=f"{len(frozen)} of {len(run.parameters)} parameter tensors never had a gradient ({', '.join(frozen)}); "
        f"the loss only went from {losses[0]:.2f} to {losses[-1]:.2f}",
        usual="0 without a gradient",
        onset=0,
        place=frozen[0],
        confidence=0.62,  # it may be on purpose: direct evidence of another failure comes first
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Frozen layers",
    cures={"requires_grad on for every layer": sick.but(model="mlp")},
    false_cures={
        "ten times the learning rate: 71 % instead of 91 %": sick.but(lr=1.0),
        "twice as many steps: 66 %": sick.but(steps=400),
        "Adam: 69 %": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.15,
    symptom="The net learns slowly and stops well below the accuracy that its size should give. No error is raised.",
    mechanism="With requires_grad off, backward skips a layer and its gradient stays None. The trainable layers can "
    "only use the random features as they are.",
    formula=r"\theta_{\text{frozen}}(t) = \theta_{\text{frozen}}(0)",
    first_check="List the parameters whose .grad is None after a backward, or whose requires_grad is False.",
    remedy="Set requires_grad to True for every layer that should learn, before you build the optimizer. If you "
    "freeze layers on purpose, make sure they are trained: loaded from a checkpoint, not randomly initialised.",
    reference="Yosinski et al., How transferable are features in deep neural networks? (2014)",
    looks="stops too high",
    shows="grad_norm",
    where=("layer1", "layer2"),
    also_causes=("learning_rate_left_low", "underfit"),
    knobs=(Knob("width", (16, 512), log=True), Knob("depth", (2, 6)), Knob("lr", (0.01, 1.0), log=True)),
)
