"""Batch norm on batches of two: each image is normalised with one other image, and the net learns noise."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss
from labkit.training.recipe import Recipe

FEW = 4  # images per batch; from 8 on, batch statistics become usable
# The training loss of the last quarter as a share of ln(classes). Batches of 2 with batch norm: 0.77 to 0.99; healthy
# runs of the same length with layer norm: 0.2; batches of 4 with batch norm: 0.36, almost harmless.
LEFT = 0.5

healthy = Recipe(depth=3, normalisation="layer", optimizer="adam", lr=0.001, batch_size=2, steps=1000)
sick = healthy.but(normalisation="batch")


def signature(run: Run) -> Evidence | None:
    length, norms = run.facts.get("batch_length") or np.inf, run.facts.get("batch_norms")
    losses = run["loss"][-max(1, len(run) // 4) :]
    chance = chance_loss(run)
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
    __name__,
    healthy,
    sick,
    signature,
    title="Batch norm on tiny batches",
    cures={
        "layer norm, which needs no batch": sick.but(normalisation="layer"),
        "batches of 32": sick.but(batch_size=32),
    },
    false_cures={
        "a tenth of the learning rate: 35 %": sick.but(lr=0.0001),
        "three times the learning rate: 65 %": sick.but(lr=0.003),
    },
    harm=0.15,
    symptom="The training loss hardly falls, and it is higher in train mode than in eval mode on the same images.",
    mechanism="The mean and variance of two images are poor estimates for all images. Each output depends on the "
    "random other image in the batch, and normalising two values keeps little more than which one is larger.",
    formula=r"N = 2: \quad \hat{x}_i = \frac{x_i - \mu}{\sigma} = \pm 1",
    first_check="The number of images per device and step. With batch norm, fewer than 8 is suspicious; a batch of 1 "
    "raises an error.",
    remedy="Layer norm or group norm, which normalise each image on its own, or larger batches. Gradient accumulation "
    "over several small batches does not help: the statistics still come from two images.",
    reference="Wu and He, Group Normalization (2018)",
    looks="stops too high",
    shows="val_accuracy",
    learned={"mnist": 0.75, "cifar10": 0.25},  # only 2,000 images, one pass: 82 to 88 % and 32 %
    knobs=(Knob("normalisation", ("none", "batch", "layer")), Knob("batch_size", (2, 128), log=True)),
)
