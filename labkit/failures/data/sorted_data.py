"""Sorted by class and never shuffled: the net learns one digit at a time, and forgets the previous one."""

import numpy as np

from labkit.failures.mode import ClassicCurve, Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.sample_log import entropy
from labkit.recording.summaries import chance_loss, fixed_loss, label_shares, late_loss
from labkit.training.recipe import Recipe

# Median entropy of a batch's labels over that of all labels of the run. Shuffled batches of 128: 0.99; sorted: 0.
# Where classes are rare, or are drawn in chunks, it is in between.
MIXED = 0.3
ALL_CLASSES = 0.5  # entropy of all labels over ln(classes); below it classes are missing, which is another failure
BATCH = 16  # samples; smaller batches hold few classes in any order
FORGOTTEN = 2.0  # loss on fixed training images over the late batch loss; healthy: 0.9 to 1.0, sorted: 60 and more
NOTHING_LEARNED = 0.85  # or that loss over chance level: with momentum a sorted run learns nothing at all

healthy = Recipe(steps=300)


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
    if overall < ALL_CLASSES * np.log(len(shares)) or within > MIXED * overall:
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
    __name__,
    healthy,
    sick,
    signature,
    title="Sorted data",
    cures={"a new random order each epoch": sick.but(batches="shuffled")},
    false_cures={
        "momentum 0.9: 11 %": sick.but(momentum=0.9),
        "a tenth of the learning rate: 64 %": sick.but(lr=0.01),
    },
    harm=0.5,
    symptom="The batch loss is close to zero most of the time and jumps whenever the class changes. The validation "
    "accuracy comes from the last few classes.",
    mechanism="While only one class arrives, always predicting it lowers the loss fastest. What was learned before is "
    "overwritten.",
    formula=r"g_t = \mathrm{E}[\nabla \ell \mid y = k_t] \neq \mathrm{E}[\nabla \ell]",
    first_check="The labels of one batch, or the loss over the steps: a sawtooth with one tooth per class.",
    remedy="Shuffle before each epoch. If the data are too large for that, shuffle the order of the files and use a "
    "shuffle buffer larger than a class.",
    reference="McCloskey and Cohen, Catastrophic Interference in Connectionist Networks (1989)",
    looks="validation worse",
    shows="label_entropy",
    knobs=(
        Knob("lr", (0.001, 0.3), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("batch_size", (32, 2048), log=True),
    ),
    classic=ClassicCurve(4, "sawtooth at epoch ends"),
)
