"""Half of the validation images are in the training set: the reported score is better than the net."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import has_tokens
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of the validation samples that were trained on, pixel for pixel, beyond what chance explains. Healthy: 0 on
# MNIST and CIFAR-10. Where inputs have few values, as tokens have, equal samples are no leak: 1,000 different inputs,
# 5,000 of them drawn, share 99 % by chance.
SHARED = 0.01
# The same for integers: in a small text two sequences of tokens can be equal, and few pairs tell how often.
SHARED_TOKENS = 0.05
# What it may be above chance, as a share of that: with few different inputs (ids) healthy programs have up to 0.1.
DOUBT = 0.3

LEAKED = 2  # every second validation image, as after a split that follows augmentation, or two merged downloads

healthy = Recipe(samples=2000, steps=400)


def with_validation_images(split, recipe, generator):
    """The usual batches from a training set into which every second validation image was merged."""
    val = recipe.data(recipe.but(device=split.y.device.type)).val
    x, y = torch.cat([split.x, val.x[::LEAKED].to(split.x.dtype)]), torch.cat([split.y, val.y[::LEAKED]])
    return shuffled(split._replace(x=x, y=y), recipe, generator)


sick = healthy.but(batches=with_validation_images)


def signature(run: Run) -> Evidence | None:
    if run.facts.get("batch_length") == 1:  # how many samples are alike by chance is read from those of one batch
        return None
    shared = run.facts.get("val_trained_on", 0.0)
    by_chance = run.facts.get("val_trained_on_by_chance", 0.0)
    if (
        shared - by_chance < max(SHARED_TOKENS if has_tokens(run) else SHARED, DOUBT * by_chance)
        or not run["val_input_std"][-1] > 0
    ):  # blank images are all identical
        return None
    return Evidence(
        seen=f"{shared:.0%} of the validation images were trained on: {run.accuracy or 0:.1%} accuracy is inflated",
        usual="0 %",
        onset=0,
        place="validation set",
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Leakage into validation",
    cures={"the leaked images removed: the lower score is the true one": sick.but(batches="shuffled")},
    false_cures={"dropout 0.5: memorises less, but counts the same images": sick.but(dropout=0.5)},
    harm=0.0,
    costs="The score is not reliable: 2,000 digits report 95 % with the leak and 89 % without it, photographs 60 % "
    "and 39 %. The difference shows up in production, on images that are new to the net.",
    symptom="The validation score is better than the amount of data explains, and the net does worse in production. "
    "Nothing in the curves looks wrong.",
    mechanism="The net has memorised the images it was trained on. Their share of the validation set is scored as "
    "training accuracy, and the mean hides it.",
    formula=r"\text{score} = (1 - s) \, \text{score}_{\text{new}} + s \, \text{score}_{\text{training}}",
    first_check="Checksums of all training images and all validation images, and their intersection.",
    remedy="Split first, by source (person, patient, day), and only then augment, copy or merge. Remove duplicates "
    "and near-duplicates before the split. The score will fall: the lower one was always the true one.",
    reference="Kapoor and Narayanan, Leakage and the reproducibility crisis in machine-learning-based science (2023)",
    looks="nothing",
    shows="val_accuracy",
    knobs=(
        Knob("samples", (1000, 10_000), log=True),
        Knob("steps", (100, 1000)),
        Knob("dropout", (0.0, 0.9)),
    ),
)
