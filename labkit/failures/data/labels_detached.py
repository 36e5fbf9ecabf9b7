"""Images and labels are drawn from two shuffled streams: the same image comes with another label each time."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.failures.signs import chance_loss, input_deviation, late_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of the samples seen again that come with another label. Healthy: 0, fixed label noise included; ten classes
# drawn independently: 0.9.
CHANGING = 0.3
NOTHING_LEARNED = 0.85  # late batch loss over that of chance; independent labels give 1.0
SEEN = 1e-4  # standard deviation of the inputs: blank images are all the same one, and have every label

healthy = Recipe(momentum=0.0, steps=300)


def labels_from_another_stream(split, recipe, generator):
    """Images in one random order, labels in another: two samplers where there should be one."""
    for x, _ in shuffled(split, recipe, generator):
        order = torch.randint(len(split.y), (len(x),), generator=generator)
        yield x, split.y[order.to(split.y.device)]


sick = healthy.but(batches=labels_from_another_stream)


def signature(run: Run) -> Evidence | None:
    changing, loss = run.facts.get("relabelled", 0.0), late_loss(run)
    if changing < CHANGING or not input_deviation(run) > SEEN or not loss > NOTHING_LEARNED * chance_loss(run):
        return None
    return Evidence(
        seen=f"{changing:.0%} of the images that came again had another label than before, and the loss is {loss:.2f}",
        usual="0 %: an image keeps its label",
        onset=0,
        place="labels",
        confidence=0.97,
    )


failure = FailureMode(
    title="Labels detached from images",
    healthy=healthy,
    sick=sick,
    cures={"one order for images and labels": sick.but(batches="shuffled")},
    false_cures={
        "a larger batch": sick.but(batch_size=512),
        "Adam": sick.but(optimizer="adam", lr=0.003),
    },
    signature=signature,
    harm=0.85,
    symptom="The loss sits at chance level however long the net is trained, though gradients flow and weights move.",
    mechanism="Over the epochs every image comes with every label, and the best answer to that is always the same: "
    "how frequent each class is. Not even learning by heart is possible.",
    first_check="Follow one image through two epochs, and compare the labels it comes with.",
    remedy="Draw images and labels with one index, in one place. One batch, fitted again and again, does not find this "
    "bug: in a single batch each image has one label.",
    reference="Karpathy, A Recipe for Training Neural Networks (2019)",
    looks="never moves",
    shows="probe_accuracy",
    knobs=(
        Knob("steps", (100, 1000)),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("batch_size", (32, 512), log=True),
    ),
)
