"""The labels are shuffled independently of the images: everything works, but there is nothing to learn."""

import numpy as np
import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.failures.signs import tested
from labkit.recording.meters import layer_of
from labkit.recording.run import Run
from labkit.recording.summaries import (
    chance_loss,
    input_deviation,
    label_shares,
    late_loss,
    matrix_layers,
    typical,
    unexplained,
    worst_dead,
)
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Late batch loss over chance level. Shuffled labels: 0.98; healthy photographs below 0.7 after 300 steps.
NOTHING_LEARNED = 0.93
GUESSING = 2.0  # validation accuracy over chance; shuffled labels 0.8 to 1.5, double softmax on photographs 2.9
CALM = 1.5  # highest batch loss over chance level; where steps are too large it is another failure
BUSY = 1e-3  # median update as a share of each layer; shuffled labels 1e-2, a learning rate too low 1e-6 to 1e-4
# Median norm of the whole gradient. Shuffled labels: 0.7 to 1.6; blank images, plateaus, collapsed weights: 0.1.
ALIVE = 0.2
ENOUGH = 100  # steps; a healthy net of this kind is better than chance by step 20
DEAD = 0.85  # share of dead units; shuffled labels 0 to 0.8, as in the healthy program
# Weight norm at the end over that at the start, per layer; shuffled labels 1.0, a head that is of no use 0.37, too much
# weight decay 0.02.
KEPT = 0.25
SAME = 0.1  # share of repeated samples whose label changes; shuffled once: 0
EVEN = 0.5  # share of the most frequent class; healthy: 0.10 to 0.12. Above that, chance level is another loss
NOT_BLANK = 1e-4  # standard deviation of the inputs
# Other tasks, over the loss of a constant prediction: what is left on the probe where validation is best. Shuffled
# targets 0.95 to 1.1; healthy programs 0 to 0.6, and 0.5 to 0.88 where labels or targets are mostly noise: what such a
# net has learned by then helps with new samples, too. NEARLY: nine of ten labels shuffled, and validation is never
# below KEEPS of its first value; 0.82 in a noisy program with outliers. MEMORISED: where validation gets worse from
# there on, by WORSENS, while the probe falls by MUCH, as after nine of ten labels were shuffled: 0.86 to 1. Memorising
# is SLOW: after a quarter of the evaluations 0.7 to 1 is left; where only the validation set differs 0.1 to 0.6. And at
# the FIRST evaluation 0.97 to 1: a noisy program that overfits has 0.89.
EVALUATIONS, NEVER, NEARLY, KEEPS, MEMORISED, WORSENS, MUCH = 4, 0.95, 0.9, 0.88, 0.86, 1.02, 0.1
SLOW, FIRST = 0.65, 0.95
# Steps times the median update, as a share of the layer: how far its weights could have gone. PATH: of the layer that
# goes furthest. Shuffled 0.8 to 60; learning rates that are too low 0.1 to 0.75, and the loss still falls there, by
# STILL and more in the second half; from FAR on that is not asked. EACH: of every layer; shuffled 0.3 and more.
PATH, FAR, STILL, EACH = 0.6, 1.5, 0.03, 0.1
FAINT = 0.02  # gradient norm over the loss of a constant prediction; shuffled 0.03 to 3
BLIND = 0.01  # difference between perfect outputs for their own targets and for others: at 0 the loss is to blame
WORSE = 1.3  # the highest of these losses on the probe; shuffled up to 1.2. Where it rises further, steps are wrong
# The highest smoothed batch loss over the first one, or over that of a constant prediction if that is higher. Shuffled
# 0.99 to 1.14 in 36 small programs; a GPT at 200 times its learning rate 1.7, before its first validation.
ROSE = 1.5

healthy = Recipe(steps=300)


def shuffled_labels(split, recipe, generator):
    """The usual batches, after the labels were shuffled once, independently of the images."""
    order = torch.randperm(len(split.y), generator=torch.Generator().manual_seed(recipe.seed))
    return shuffled(split._replace(y=split.y[order.to(split.y.device)]), recipe, generator)


sick = healthy.but(batches=shuffled_labels)


def working(run: Run, alive: float = ALIVE) -> bool:
    """Are images, gradients, updates and units healthy?"""
    weights, names = matrix_layers(run, "weight_norm")
    frozen = {layer_of(name) for name in run.facts.get("without_gradient", ())}
    updates = typical(matrix_layers(run, "update_ratio")[0])[[name not in frozen for name in names]]
    gradient = typical(run["grad_norm_total"][:, None])[0]
    return bool(
        len(updates)
        and updates.min() > min(BUSY, EACH / (run["step"][-1] + 1))
        and (weights[-1] > KEPT * weights[0]).all()
        and gradient > alive
        and input_deviation(run) > NOT_BLANK
        and worst_dead(run)[0][-1] < DEAD
    )


def memorised_at_best(run: Run) -> Evidence | None:
    """For any task: what the net learns about its samples helps with no others, though it works and goes far."""
    left, validated, chance = unexplained(run), run["val_loss"], chance_loss(run)
    if len(left) < EVALUATIONS or not np.isfinite([*validated, *left]).all() or left.max() > WORSE:
        return None
    losses = run.smoothed()
    if not losses.max() < ROSE * max(losses[0], chance):
        return None
    best = int(np.argmin(validated))
    memorises = left[best] - left[-1] > MUCH and validated[-1] > WORSENS * validated[best] and left[0] > FIRST
    nearly = left[best] > NEARLY and validated[best] > KEEPS * validated[0]
    if not (left[best] > (MEMORISED if memorises else NEVER) or nearly) or not left[len(left) // 4] > SLOW:
        return None
    path, late_fall = (run["step"][-1] + 1) * np.nanmax(typical(run["update_ratio"])), left[len(left) // 2] - left[-1]
    if not path > PATH or (path < FAR and late_fall > STILL and not memorises):
        return None
    tests = tested(run)
    blind = abs(tests.get("truth", 0.0) - tests.get("swapped", np.inf)) < BLIND * chance
    if blind or not working(run, FAINT * chance):
        return None
    return Evidence(
        seen=f"where validation is best, {left[best]:.2f} of the loss of a constant prediction is left on the probe, "
        f"and {left[-1]:.2f} after {len(run)} steps, although gradients arrive and every layer changes",
        usual="less than 0.6, or less than 0.87 if labels are noisy: what is learned helps with other samples",
        onset=0,
        place="labels",
        confidence=0.65 if memorises else 0.6,  # a net that does not even memorise may have another fault
    )


def signature(run: Run) -> Evidence | None:
    if len(run) < ENOUGH:
        return None
    if "constant_loss" in run.facts and "val_loss" in run and (found := memorised_at_best(run)):
        return found
    if "val_accuracy" not in run or "classes" not in run.facts:
        return None
    loss, chance = late_loss(run), chance_loss(run)
    if not loss > NOTHING_LEARNED * chance or not run["loss"].max() < CALM * chance:
        return None
    if not run["val_accuracy"][-1] < GUESSING / run.facts["classes"]:
        return None
    shares = label_shares(run)
    if not len(shares) or shares.max() > EVEN or run.facts.get("relabelled", 1.0) > SAME or not working(run):
        return None
    gradient = typical(run["grad_norm_total"][:, None])[0]
    return Evidence(
        seen=f"the loss is {loss:.2f} after {len(run)} steps, at chance level ({chance:.2f}), although gradients "
        f"arrive (norm {gradient:.2g}), every layer changes, and each image keeps its label",
        usual="a loss well below chance level after 20 steps, if gradients and updates are healthy",
        onset=0,
        place="labels",
        confidence=0.8,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Shuffled labels",
    cures={"labels that belong to their images": sick.but(batches="shuffled")},
    false_cures={
        "a third of the learning rate": sick.but(lr=0.03),
        "Adam": sick.but(optimizer="adam", lr=0.003),
        "four times as many units": sick.but(width=512),
    },
    harm=0.85,
    symptom="The loss stays at chance level, while gradients, updates, units and images all look healthy. With few "
    "images and enough steps the loss does fall, but the validation accuracy stays at chance.",
    mechanism="An image says nothing about the label it was given, so the net can only memorise each pair, and that "
    "takes hundreds of epochs.",
    formula=r"I(x; y) = 0",
    first_check="Plot twenty training images with their labels, taken at the point where the net receives them.",
    remedy="Shuffle images and labels with the same permutation, and sort or join files by key, never by position. "
    "Overfitting one batch does not find this bug: a large net memorises any 32 labels.",
    reference="Zhang et al., Understanding deep learning requires rethinking generalization (2017)",
    looks="never moves",
    shows="probe_accuracy",
    knobs=(
        Knob("samples", (100, 10_000), log=True),
        Knob("steps", (100, 1000)),
        Knob("width", (16, 512), log=True),
        Knob("lr", (0.01, 0.3), log=True),
    ),
)
