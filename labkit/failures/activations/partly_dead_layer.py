"""Nine tenths of the first layer are dead from the start: the loss falls anyway, and nobody notices."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss
from labkit.training import models
from labkit.training.recipe import Recipe

# Share of a layer's units that are zero on the probe at every evaluation, even the first. Healthy nets start with 0 to
# 4 % (6 layers of PyTorch's default init: 37 %), this one with 90 %.
DEAD = 0.75
ALL = 1.0  # a layer in which every unit is dead is another failure
LEARNED = 0.75  # share of the first loss left, at most: here 8 % (CIFAR-10: 65 %); a stuck net has a worse failure
SHARE, BIAS = 0.9, -30.0


def mlp_with_dead_units(recipe, data) -> torch.nn.Module:
    """The plain net, with biases so low in nine tenths of the first layer that no image activates them."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        bias = net.get_submodule("layer1").bias
        bias[: round(SHARE * len(bias))] = BIAS
    return net


healthy = Recipe(depth=3, optimizer="adam", lr=0.003)
sick = healthy.but(model=mlp_with_dead_units)


def signature(run: Run) -> Evidence | None:
    least, losses = smallest_dead_share(run), fixed_loss(run)
    if run["val_step"][0] > 0:  # after an epoch it is not known how they began: 92 % in a healthy program on graphs
        return None
    chosen = np.flatnonzero((least > DEAD) & (least < ALL))
    if not len(chosen) or len(losses) < 2 or losses[-1] > LEARNED * losses[0]:
        return None
    place = chosen[np.argmax(least[chosen])]
    return Evidence(
        seen=f"{least[place]:.0%} of the units of {run.activations[place]} are zero on every probe image, from the "
        f"first evaluation to the last, while the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}",
        usual="0 to 4 % before training",
        onset=0,
        place=run.activations[place],
    )


def smallest_dead_share(run: Run) -> np.ndarray:
    """The smallest share of dead units each layer had at any evaluation; -1 where there are no units to count."""
    return np.where(np.isfinite(run["dead"]), run["dead"], -1.0).min(axis=0, initial=1.0)


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Mostly dead layer",
    cures={
        "batch normalisation before each ReLU": sick.but(normalisation="batch"),
        "PyTorch's default biases": sick.but(model=models.mlp),
    },
    false_cures={"a higher learning rate: 0.01, 90 % accuracy": sick.but(lr=0.01)},
    harm=0.01,
    costs="Two to five points of accuracy, a training loss three times as high, and wasted compute: the layer has 128 "
    "features and uses 13.",
    symptom="The curves look normal: the loss falls from the start and the accuracy looks good. It is a few points "
    "below what the same net can reach.",
    mechanism="The remaining units solve the task alone. A unit that is off for every image has no gradient, so "
    "training cannot revive it, and the loss does not show that it is missing.",
    formula=r"\frac{\partial L}{\partial w_k} = 0 \quad \text{for every unit } k \text{ with } w_k x + b_k < 0 "
    r"\text{ for all } x",
    first_check="Share of units that are zero on a whole probe set, per layer, before the first step.",
    remedy="Find what pushed the biases down: an init, a restored checkpoint, a step that was too large. Batch "
    "normalisation before the activation revives the units at once.",
    reference="Lu et al., Dying ReLU and Initialization: Theory and Numerical Examples (2019)",
    looks="nothing",
    shows="dead",
    where=("{activation}1",),
    knobs=(
        Knob("normalisation", ("none", "batch", "layer")),
        Knob("activation", ("relu", "leaky_relu", "gelu", "tanh")),
        Knob("width", (16, 512), log=True),
        Knob("lr", (1e-4, 0.03), log=True),
    ),
    depends_on=("activation",),  # only ReLUs die
)
