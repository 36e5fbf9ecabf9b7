"""Three of six residual blocks output zero for every image: the skip connections bypass them, and the net learns."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss, matrix_layers
from labkit.training import models
from labkit.training.recipe import Recipe

LEARNED = 0.75  # share of the first loss left at the end, at most: here 9 %; a net that is stuck has a worse failure
BIAS = -30.0


def mlp_with_dead_blocks(recipe, data) -> torch.nn.Module:
    """The plain residual net, with biases so low in the middle blocks that they output zero for every image."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        for number in range(2, recipe.depth - 1):
            net.get_submodule(f"block{number}.block.layer{number}").bias.fill_(BIAS)
    return net


healthy = Recipe(depth=6, width=64, residual=True, lr=0.05)
sick = healthy.but(model=mlp_with_dead_blocks)


def signature(run: Run) -> Evidence | None:
    idle, dead, losses = layers_with_zero_gradient(run), always_dead(run), fixed_loss(run)
    if not idle or not dead or len(losses) < 2 or losses[-1] > LEARNED * losses[0]:
        return None
    return Evidence(
        seen=f"the gradients of {', '.join(idle)} are exactly 0 at all {len(run)} steps and 100 % of the units of "
        f"{', '.join(dead)} are dead, while the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
        usual="gradient norms of 0.01 to 10 in every layer, and 0 to 10 % dead units",
        onset=0,
        place=idle[0],
        confidence=0.95,
    )


def layers_with_zero_gradient(run: Run) -> list[str]:
    """Layers with a weight matrix whose gradient existed at every step and was always 0."""
    norms, names = matrix_layers(run, "grad_norm")
    without = {name.rpartition(".")[0] for name in run.facts.get("without_gradient", ())}
    return [name for name, norm in zip(names, norms.T, strict=True) if not norm.any() and name not in without]


def always_dead(run: Run) -> list[str]:
    """Activations in which no unit was active on any probe image at any evaluation."""
    return [run.activations[place] for place in np.flatnonzero((run["dead"] == 1).all(axis=0))]


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Dead residual branch",
    cures={
        "batch normalisation before each ReLU": sick.but(normalisation="batch"),
        "PyTorch's default biases": sick.but(model=models.mlp),
    },
    false_cures={"a wider net: 128 units": sick.but(width=128)},
    harm=0.0,
    costs="Half of the layers do nothing: the net pays for six and trains three, and its loss ends 50 % higher.",
    symptom="The loss looks normal: it falls from the start. The gradients of some blocks are exactly 0.",
    mechanism="A residual block adds its output to its input. If its units are off for every image, it adds 0 and "
    "receives no gradient. The skip connection carries activations and gradients past it, so the rest learns.",
    formula=r"y = x + f(x), \quad f(x) = 0 \text{ and } \frac{\partial f}{\partial W} = 0 \text{ for every } x",
    first_check="Gradient norms per layer: exactly 0 at every step, while other layers have gradients, is a dead "
    "block.",
    remedy="Batch normalisation before the activation revives the block. Compare the biases with a fresh init, and "
    "never take a falling loss as proof that every layer learns.",
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
    not_on_cifar10="A perceptron learns photographs no better with six layers than with three: 43 % in both cases.",
    depends_on=("activation",),  # only ReLUs die
)
