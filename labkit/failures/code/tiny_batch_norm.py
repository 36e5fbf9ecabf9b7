"""Batch norm on batches of two: each image is normalised by its one neighbour, and the net learns noise."""

import math

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

FEW = 4  # images per batch; from 8 on batch norm has something to average
# The training loss of the last quarter as a share of ln(classes). Batches of 2 with batch norm: 0.77 to 0.99; healthy
# runs of the same length with layer norm: 0.2; batches of 4 with batch norm 0.36, which does hardly any harm yet.
LEFT = 0.5

healthy = Recipe(depth=3, normalisation="layer", optimizer="adam", lr=0.001, batch_size=2, steps=1000)
sick = healthy.but(normalisation="batch")


def signature(run: Run) -> Evidence | None:
    length, norms = run.facts.get("batch_length") or np.inf, run.facts.get("batch_norms")
    losses = run["loss"][-max(1, len(run) // 4) :]
    chance = math.log(run.facts.get("classes", 10))
    if length > FEW or not norms or not np.isfinite(losses).all() or losses.mean() < LEFT * chance:
        return None
    return Evidence(
        seen=f"{len(norms)} batch norms on batches of {length}; the training loss is still {losses.mean():.2f}",
        usual=f"batches of 16 or more; chance level is {chance:.2f}",
        onset=0,
        place=norms[0],
        confidence=0.9,
    )


failure = FailureMode(
    title="Batch norm on tiny batches",
    healthy=healthy,
    sick=sick,
    cures={
        "layer norm, which needs no neighbours": sick.but(normalisation="layer"),
        "batches of 32": sick.but(batch_size=32),
    },
    false_cures={
        "a tenth of the learning rate: 35 %": sick.but(lr=0.0001),
        "three times the learning rate: 65 %": sick.but(lr=0.003),
    },
    signature=signature,
    harm=0.15,
    symptom="The training loss hardly falls, and it is higher in train mode than in eval mode on the very same images.",
    mechanism="The mean and the variance of two images say little about all images. Each output depends on the "
    "neighbour that chance has dealt, and normalising two values leaves hardly more than which of them was larger.",
    first_check="The number of images per device and step. With batch norm, below 8 is suspect; a batch of 1 is an "
    "error.",
    remedy="Layer norm or group norm, which look at one image at a time, or larger batches. Adding up gradients over "
    "several small batches does not help: the statistics are still those of two images.",
    reference="Wu and He, Group Normalization (2018)",
    looks="stops too high",
    shows="val_accuracy",
    learned={"mnist": 0.75, "cifar10": 0.25},  # two thousand images, seen once: 82 to 88 % and 32 %
    knobs=(Knob("normalisation", ("none", "batch", "layer")), Knob("batch_size", (2, 128), log=True)),
)
