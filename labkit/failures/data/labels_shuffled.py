"""The labels were shuffled apart from their images: everything works, and there is nothing to find out."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.failures.signs import chance_loss, input_deviation, label_shares, late_loss, matrix_layers, typical, worst_dead
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Late batch loss over that of chance. Shuffled labels: 0.98; healthy photographs below 0.7 after 300 steps.
NOTHING_LEARNED = 0.93
GUESSING = 2.0  # validation accuracy over chance; shuffled labels 0.8 to 1.5, double softmax on photographs 2.9
CALM = 1.5  # highest batch loss over that of chance; where steps are too long it is another failure
BUSY = 1e-3  # median update as a share of each layer; shuffled labels 1e-2, a rate too low 1e-6 to 1e-4
# Median norm of the whole gradient. Shuffled labels: 0.7 to 1.6; blank images, plateaus, collapsed weights: 0.1.
ALIVE = 0.2
ENOUGH = 100  # steps; a healthy net of this kind has left chance by step 20
DEAD = 0.5
KEPT = 0.5  # weight norm at the end over that at the start, per layer; shuffled labels 1.0, a decay too strong 0.02
SAME = 0.1  # share of samples whose label changes from visit to visit; shuffled once and for all: 0
EVEN = 0.5  # share of the most frequent class; healthy: 0.10 to 0.12. With more, chance has another loss
SEEN = 1e-4  # standard deviation of the inputs

healthy = Recipe(momentum=0.0, steps=300)


def shuffled_labels(split, recipe, generator):
    """The usual batches, after the column of labels was shuffled on its own: once, and for good."""
    order = torch.randperm(len(split.y), generator=torch.Generator().manual_seed(recipe.seed))
    return shuffled(split._replace(y=split.y[order.to(split.y.device)]), recipe, generator)


sick = healthy.but(batches=shuffled_labels)


def working(run: Run) -> bool:
    """Are images, gradients, updates and units as they should be?"""
    updates = typical(matrix_layers(run, "update_ratio")[0])
    weights = matrix_layers(run, "weight_norm")[0]
    gradient = typical(run["grad_norm_total"][:, None])[0]
    return bool(
        len(updates)
        and updates.min() > BUSY
        and (weights[-1] > KEPT * weights[0]).all()
        and gradient > ALIVE
        and input_deviation(run) > SEEN
        and worst_dead(run)[0][-1] < DEAD
    )


def signature(run: Run) -> Evidence | None:
    loss, chance = late_loss(run), chance_loss(run)
    if len(run) < ENOUGH or not loss > NOTHING_LEARNED * chance or not run["loss"].max() < CALM * chance:
        return None
    if not run["val_accuracy"][-1] < GUESSING / run.facts["classes"]:
        return None
    shares = label_shares(run)
    if not len(shares) or shares.max() > EVEN or run.facts.get("relabelled", 1.0) > SAME or not working(run):
        return None
    gradient = typical(run["grad_norm_total"][:, None])[0]
    return Evidence(
        seen=f"the loss is {loss:.2f} after {len(run)} steps, where chance has {chance:.2f}, though the gradients are "
        f"alive (norm {gradient:.2g}), every layer moves, and each image keeps its label",
        usual="a loss well below chance after 20 steps, once gradients and updates are in order",
        onset=0,
        place="labels",
        confidence=0.8,
    )


failure = FailureMode(
    title="Shuffled labels",
    healthy=healthy,
    sick=sick,
    cures={"labels that belong to their images": sick.but(batches="shuffled")},
    false_cures={
        "a third of the learning rate": sick.but(lr=0.03),
        "Adam": sick.but(optimizer="adam", lr=0.003),
        "four times as many units": sick.but(width=512),
    },
    signature=signature,
    harm=0.85,
    symptom="The loss stays at chance level, while gradients, updates, units and images all look healthy. Trained for "
    "long enough on few images, the loss does fall, and the validation accuracy stays at chance.",
    mechanism="Nothing in an image says which label it was given, so there is nothing to learn but each pair by heart, "
    "and that takes hundreds of visits.",
    first_check="Draw twenty training images with their labels under them, taken where the net takes them.",
    remedy="Shuffle images and labels with one and the same order, and sort or join files by key, never by position. "
    "Overfitting one batch does not find this bug: a large net learns any 32 labels by heart.",
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
