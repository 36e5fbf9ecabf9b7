"""Two classes of 1,000 images and eight of 20: the mean loss is low when the net knows only two."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import label_shares, late_loss
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of the most frequent class over that of the rarest, among the samples trained on. Healthy: 1.3, in programs with
# classes of unequal size up to 9; imbalanced: 50 and more.
UNEVEN = 12.0
ALONE = 0.999  # above this there is only one class, which is another failure
DIFFERENT = 30  # samples, where that is known: among 12 some class is always rare
ENOUGH = 500  # samples, in the set and drawn from it; with fewer, one class of ten can be rare by chance
LEFT_OUT = 2.0  # validation loss over the late batch loss; healthy: 1.0 to 1.3, imbalanced: 7 to 11
# Validation loss minus the loss of the batches before it, over ln(classes), at its highest in the first pass through
# the samples, and at the end. Where the validation set has other shares the gap is there from the start: programs of
# every kind 0.9 to 3.5 and 0.6 to 6.3. Where it has the same ones, eight to one, a net that overfits opens it later:
# 0.0 to 0.1.
GAP = 0.3
RECENT = 8  # batches before a validation

COMMON, MANY, FEW = 2, 1000, 20
healthy = Recipe(lr=0.02, steps=300)


def imbalanced(split):
    """An imbalanced data set: MANY images of each of the first COMMON classes, FEW of the others."""
    order = split.y.argsort(stable=True)
    counts = split.y.bincount()
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[split.y[order]]
    kept = order[place < torch.where(split.y[order] < COMMON, MANY, FEW)]
    return split._replace(x=split.x[kept], y=split.y[kept])


def imbalanced_batches(split, recipe, generator):
    """The usual batches from the imbalanced data set."""
    return shuffled(imbalanced(split), recipe, generator)


def balanced_batches(split, recipe, generator):
    """The same data set, but images are drawn with probability inverse to the frequency of their class."""
    split = imbalanced(split)
    weights = (1 / split.y.bincount().float())[split.y].cpu()
    while True:
        batch = torch.multinomial(weights, recipe.batch_size, replacement=True, generator=generator)
        batch = batch.to(split.y.device)
        yield split.x.index_select(0, batch), split.y.index_select(0, batch)


sick = healthy.but(batches=imbalanced_batches)


def first_gap(run: Run) -> float:
    """Validation loss minus that of the batches before it, at its highest in the first pass, or at the first one."""
    steps = run["val_step"][run["val_step"] > 0]
    last = max(run.facts.get("fresh_steps", 0), int(steps[0])) if len(steps) else 0
    gaps = [
        float(loss - run["loss"][run["step"] < step][-RECENT:].mean())
        for step, loss in zip(run["val_step"], run["val_loss"], strict=True)
        if 0 < step <= last
    ]
    return max(gaps, default=-np.inf)


def signature(run: Run) -> Evidence | None:
    shares = label_shares(run)
    drawn = len(run) * run.facts.get("batch_length", 0)
    known = min(drawn, run.facts.get("samples", drawn))
    if (
        len(shares) < 2
        or shares.max() > ALONE
        or known < ENOUGH
        or run.facts.get("different_samples", DIFFERENT) < DIFFERENT
    ):
        return None
    late, validated = late_loss(run), float(run["val_loss"][-1])
    if shares.max() < UNEVEN * shares.min() or not validated > LEFT_OUT * late:
        return None
    if not min(validated - late, first_gap(run)) > GAP * np.log(max(2, np.count_nonzero(shares))):
        return None
    rarest = int(shares.argmin())
    return Evidence(
        seen=f"class {int(shares.argmax())} has {shares.max():.0%} of the training samples, class {rarest} "
        f"{shares.min():.1%}; the batch loss is {late:.2g}, the validation loss {validated:.2g}",
        usual="no class more than 1.3 times as frequent as another, and two losses of similar size",
        onset=0,
        place="labels",
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Class imbalance",
    cures={"sampling by inverse frequency": sick.but(batches=balanced_batches)},
    false_cures={
        "weight decay 0.01: 48 %": sick.but(weight_decay=0.01),
        "dropout 0.5: 46 %": sick.but(dropout=0.5),
    },
    harm=0.35,
    close=0.17,
    limit="Twenty images per class remain twenty images: drawing them more often adds no information. Only more data "
    "of the rare classes closes the gap.",
    learned={"mnist": 0.7, "cifar10": 0.2},
    symptom="The training loss falls and looks fine. On a balanced validation set the accuracy stalls early, and "
    "nearly all correct predictions belong to the frequent classes.",
    mechanism="The mean over a batch weights each class by its frequency. The frequent classes provide nearly all of "
    "the gradient, and ignoring the others costs almost nothing.",
    formula=r"\nabla L = \sum_k f_k \nabla L_k, \qquad f_{\text{rare}} \approx 0",
    first_check="Accuracy per class, and the label counts of the training set.",
    remedy="Sample rare classes more often, or weight their loss; evaluate by accuracy per class. Then collect more "
    "of them: sampling restores the balance, not the missing variety.",
    reference="Buda, Maki and Mazurowski, A systematic study of the class imbalance problem (2018)",
    looks="validation worse",
    shows="val_accuracy",
    knobs=(
        Knob("lr", (0.01, 0.3), log=True),
        Knob("steps", (100, 2000), log=True),
        Knob("momentum", (0.0, 0.9)),
        Knob("dropout", (0.0, 0.9)),
    ),
)
