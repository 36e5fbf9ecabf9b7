"""Sorted by class and never shuffled: the net learns one digit at a time, and forgets the one before."""

import numpy as np

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.sample_log import entropy
from labkit.failures.signs import chance_loss, fixed_loss, label_shares, late_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Median entropy of a batch's labels over that of all labels of the run. Shuffled batches of 128: 0.99; sorted: 0.
# Where classes are rare, or are drawn in chunks, it is in between.
MIXED = 0.3
SPREAD = 0.5  # entropy of all labels over ln(classes); with less the run lacks classes, which is another failure
BATCH = 16  # samples; smaller batches hold few classes whatever the order
FORGOTTEN = 2.0  # loss on fixed training images over the late batch loss; healthy: 0.9 to 1.0, sorted: 60 and more
NOTHING_LEARNED = 0.85  # or that loss over chance: with momentum a sorted run learns nothing at all

healthy = Recipe(momentum=0.0, steps=300)


def sorted_by_class(split, recipe, generator):
    """All zeros first, then all ones, and so on to the nines; and the same again in the next epoch."""
    order = split.y.argsort(stable=True)
    size = min(recipe.batch_size, len(order))
    while True:
        for batch in order[: len(order) - len(order) % size].split(size):
            yield split.x.index_select(0, batch), split.y.index_select(0, batch)


sick = healthy.but(batches=sorted_by_class)


def signature(run: Run) -> Evidence | None:
    shares = label_shares(run)
    if len(shares) < 2 or run.facts.get("batch_length", 0) < BATCH:
        return None
    overall, within = entropy(shares), float(np.median(run["label_entropy"]))
    losses, late = fixed_loss(run), late_loss(run)
    if overall < SPREAD * np.log(len(shares)) or within > MIXED * overall:
        return None
    if not len(losses) or not losses[-1] > min(FORGOTTEN * late, NOTHING_LEARNED * chance_loss(run)):
        return None
    return Evidence(
        seen=f"the labels of a batch have an entropy of {within:.2f}, those of the whole run {overall:.2f}; the batch "
        f"loss is {late:.2g}, that of a mixed sample of the training set {losses[-1]:.2g}",
        usual=f"about {overall:.2f} in every batch",
        onset=0,
        place="batches",
        confidence=0.97,
    )


failure = FailureMode(
    title="Sorted data",
    healthy=healthy,
    sick=sick,
    cures={"a new random order each epoch": sick.but(batches="shuffled")},
    false_cures={
        "momentum 0.9: 11 %": sick.but(momentum=0.9),
        "a tenth of the learning rate: 64 %": sick.but(lr=0.01),
    },
    signature=signature,
    harm=0.5,
    symptom="The batch loss is close to zero most of the time and jumps whenever the class changes; the validation "
    "accuracy belongs to the few classes seen last.",
    mechanism="While only one class comes, the quickest way down is to answer with that class always. What was learned "
    "before is overwritten.",
    first_check="The labels of one batch, or the loss against the step: a saw whose teeth are the classes.",
    remedy="Shuffle before each epoch. Where the data are too large for that, mix the order of the files and shuffle "
    "in a buffer that is larger than a class.",
    reference="McCloskey and Cohen, Catastrophic Interference in Connectionist Networks (1989)",
    looks="validation worse",
    shows="label_entropy",
    knobs=(
        Knob("lr", (0.001, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("batch_size", (32, 2048), log=True),
    ),
)
