"""Attention scores two hundred times too large: from the first step each token looks at one other token alone."""

import math

import numpy as np
import torch

from labkit.training import models
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import fixed_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Mean entropy of all heads in nats, at the first evaluation. Sixteen tokens looked at alike: 2.77. Healthy nets begin
# at 2.7, scores times 50 at 0.35 and times 200 at 0.1.
COLLAPSED = 0.2
STAYS = 0.5  # and it never comes back above this; here it stays below 0.12
# Probe loss that is left at the end: healthy nets reach 0.54 to 0.75 in 200 steps, collapsed ones 1.04 to 1.23.
LEFT = 0.9
SCALE = 200.0


def vit_with_sharp_attention(recipe, data) -> torch.nn.Module:
    """The plain transformer, but with query and key weights so large that each score is `SCALE` times its size."""
    net = models.vit(recipe, data)
    with torch.no_grad():
        for block in net.blocks:
            for part in (block.attention.query, block.attention.key):
                part.weight.mul_(math.sqrt(SCALE))
                part.bias.mul_(math.sqrt(SCALE))
    return net


healthy = Recipe(
    model="vit", width=32, depth=2, optimizer="adam", lr=0.003, batch_size=64, steps=200, evaluate_every=40
)
sick = healthy.but(model=vit_with_sharp_attention)


def signature(run: Run) -> Evidence | None:
    entropy, losses = run["attention_entropy"].mean(axis=1), fixed_loss(run)
    if not (entropy[0] < COLLAPSED and np.max(entropy) < STAYS and len(losses) and losses[-1] > LEFT):
        return None
    return Evidence(
        seen=f"the heads' mean entropy is {entropy[0]:.2f} nats at the start and {entropy[-1]:.2f} at the end: "
        f"each token looks at {math.exp(entropy[0]):.1f} others; the loss is still {losses[-1]:.2f}",
        usual="2.7 nats at the start for 16 tokens, 1.4 to 2.4 after training",
        onset=0,
        place=run.heads[int(np.argmin(run["attention_entropy"][0]))],
    )


failure = FailureMode(
    title="Attention entropy collapse",
    healthy=healthy,
    sick=sick,
    cures={"queries and keys of ordinary size": sick.but(model=models.vit)},
    false_cures={
        "a learning rate of 0.01, to get away faster: 59 % right": sick.but(lr=0.01),
        "clipping the gradient norm to 1: 60 % right": sick.but(clip=1.0),
    },
    signature=signature,
    harm=0.1,
    symptom="The loss falls, but more slowly than the twin's, and ends higher. No NaN, nothing odd in the weights of "
    "other layers.",
    mechanism="Softmax of large scores is a choice: one token gets everything. The scores' gradient is proportional to "
    "p (1 - p), which is nothing at 0 and at 1, so the choice that chance made stays.",
    first_check="The entropy of each head on a fixed batch before the first step: near ln(tokens) is open, near 0 is "
    "shut. Low entropy after training can be healthy.",
    remedy="Divide the scores by the square root of the head size, draw queries and keys with an ordinary init, or "
    "normalise them (QK norm).",
    reference="Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (2023)",
    looks="stops too high",
    shows="attention_entropy",
    knobs=(
        Knob("lr", (3e-4, 0.03), log=True),
        Knob("heads", (1, 2, 4, 8)),
        Knob("depth", (1, 4)),
        Knob("steps", (100, 600)),
    ),
    learned={"mnist": 0.55},  # 200 steps, for the sake of time
    cifar10="In 200 steps this transformer gets 31 % of the photographs right, and collapsed 28 %: too near to tell.",
)
