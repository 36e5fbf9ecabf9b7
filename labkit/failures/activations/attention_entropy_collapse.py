"""Attention scores 200 times too large: from the first step on, each token attends to a single other token."""

import math

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import fixed_loss
from labkit.training import models
from labkit.training.recipe import Recipe

# Mean entropy of all heads in nats, at the first evaluation. Uniform attention over 16 tokens: 2.77. Healthy nets
# start at 2.7, scores times 50 at 0.35, scores times 200 at 0.1.
COLLAPSED = 0.2
STAYS = 0.5  # and it never rises above this; here it stays below 0.12
# Probe loss at the end: healthy nets reach 0.54 to 0.75 in 200 steps, collapsed ones 1.04 to 1.23.
LEFT = 0.9
SCALE = 200.0


def vit_with_sharp_attention(recipe, data) -> torch.nn.Module:
    """The plain transformer, with query and key weights so large that each score is `SCALE` times as large."""
    net = models.vit(recipe, data)
    with torch.no_grad():
        for block in net.blocks:
            for layer in (block.attention.query, block.attention.key):
                layer.weight.mul_(math.sqrt(SCALE))
                layer.bias.mul_(math.sqrt(SCALE))
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
        seen=f"the mean attention entropy is {entropy[0]:.2f} nats at the start and {entropy[-1]:.2f} at the end: "
        f"each token attends to {math.exp(entropy[0]):.1f} others; the loss is still {losses[-1]:.2f}",
        usual="2.7 nats at the start for 16 tokens, 1.4 to 2.4 after training",
        onset=0,
        place=run.heads[int(np.argmin(run["attention_entropy"][0]))],
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Attention entropy collapse",
    cures={"queries and keys with the default init": sick.but(model=models.vit)},
    false_cures={
        "a learning rate of 0.01, to escape faster: 59 % accuracy": sick.but(lr=0.01),
        "clipping the gradient norm to 1: 60 % accuracy": sick.but(clip=1.0),
    },
    harm=0.1,
    symptom="The loss falls more slowly than the healthy twin's and ends higher. No NaN, and normal weights in all "
    "other layers.",
    mechanism="With large scores softmax saturates: one token gets all the attention. The scores' gradient is "
    "proportional to p (1 - p), which is 0 at both ends, so the random choice made at init stays.",
    formula=r"\frac{\partial p_i}{\partial s_j} = p_i (\delta_{ij} - p_j) \to 0 \quad \text{as one } p_i \to 1",
    first_check="The entropy of each head on a fixed batch before the first step: near ln(tokens) is healthy, near 0 "
    "is collapsed. Low entropy after training can be healthy.",
    remedy="Divide the scores by the square root of the head size, use a standard init for queries and keys, or "
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
    learned={"mnist": 0.55},  # only 200 steps, to save time
    not_on_cifar10="In 200 steps this transformer reaches 31 % on the photographs, and 28 % collapsed: too close to "
    "tell apart.",
)
