"""Three of six residual blocks are off for every image: the skip connections carry the net past them, and it learns."""

import numpy as np
import torch

from labkit.training import models
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss, matrix_layers
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

LEARNED = 0.75  # of the first loss is left at most: here 9 %; a net that is stuck has a graver failure
BIAS = -30.0


def mlp_with_dead_blocks(recipe, data) -> torch.nn.Module:
    """The plain residual net, but the middle blocks start so far below zero that they add nothing to any image."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        for number in range(2, recipe.depth - 1):
            net.get_submodule(f"block{number}.block.layer{number}").bias.fill_(BIAS)
    return net


healthy = Recipe(depth=6, width=64, residual=True, lr=0.05, momentum=0.0)
sick = healthy.but(model=mlp_with_dead_blocks)


def signature(run: Run) -> Evidence | None:
    silent, dead, losses = gradient_free(run), dead_throughout(run), fixed_loss(run)
    if not silent or not dead or len(losses) < 2 or losses[-1] > LEARNED * losses[0]:
        return None
    return Evidence(
        seen=f"the gradients of {', '.join(silent)} are exactly 0 at all {len(run)} steps and 100 % of the units of "
        f"{', '.join(dead)} are silent, while the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
        usual="gradient norms of 0.01 to 10 in every layer, and 0 to 10 % silent units",
        onset=0,
        place=silent[0],
        confidence=0.95,
    )


def gradient_free(run: Run) -> list[str]:
    """Layers with a weight matrix that were given a gradient at every step, and it was 0."""
    norms, names = matrix_layers(run, "grad_norm")
    without = {name.rpartition(".")[0] for name in run.facts.get("without_gradient", ())}
    return [name for name, norm in zip(names, norms.T, strict=True) if not norm.any() and name not in without]


def dead_throughout(run: Run) -> list[str]:
    """Activations of which no unit answered to any probe image at any evaluation."""
    return [run.activations[place] for place in np.flatnonzero((run["dead"] == 1).all(axis=0))]


failure = FailureMode(
    title="Dead residual branch",
    healthy=healthy,
    sick=sick,
    cures={
        "batch normalisation before each ReLU": sick.but(normalisation="batch"),
        "PyTorch's own biases": sick.but(model=models.mlp),
    },
    false_cures={"a wider net: 128 units": sick.but(width=128)},
    signature=signature,
    harm=0.0,
    costs="Half of the layers do nothing: the net pays for six and trains three, and its loss ends half as high again.",
    symptom="Nothing to see in the loss: it falls from the start. The gradients of some blocks are exactly 0.",
    mechanism="A residual block adds its answer to what came in. When its units are off for every image it adds 0 "
    "and gets no gradient; the skip connection carries images and gradients past it, so the rest learns.",
    first_check="Gradient norms per layer: an exact 0 among living ones, at every step, is a layer that is not there.",
    remedy="Batch normalisation before the activation brings the block back. Compare the biases with a fresh init, and "
    "never read a falling loss as proof that every layer takes part.",
    reference="Veit, Wilber and Belongie, Residual Networks Behave Like Ensembles (2016)",
    looks="nothing",
    shows="dead",
    where=("block2", "block3", "block4"),
    knobs=(
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("depth", (5, 10)),
        Knob("activation", ("relu", "leaky_relu", "gelu")),
        Knob("lr", (0.01, 0.3), log=True),
    ),
    cifar10="A perceptron learns photographs no better with six layers than with three: 43 % either way.",
)
