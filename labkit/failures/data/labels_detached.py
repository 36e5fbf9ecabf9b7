"""Images and labels are drawn from two shuffled streams: the same image comes with a different label each time."""

import torch

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, input_deviation, late_loss
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of repeated samples that come with a different label. Healthy: 0, even with fixed label noise; ten classes drawn
# independently: 0.9.
CHANGING = 0.3
NOTHING_LEARNED = 0.85  # late batch loss over chance level; independent labels give 1.0
NOT_BLANK = 1e-4  # standard deviation of the inputs: blank images are all identical and have every label
# Share of new inputs that equal one that was trained on, by chance. Images and tables 0 to 0.05; where few inputs come
# in many pairs, and the label belongs to the pair, 0.9.
COMMON = 0.5

healthy = Recipe(steps=300)


def labels_from_another_stream(split, recipe, generator):
    """Images in one random order, labels in another: two samplers where there should be one."""
    for x, _ in shuffled(split, recipe, generator):
        order = torch.randint(len(split.y), (len(x),), generator=generator)
        yield x, split.y[order.to(split.y.device)]


sick = healthy.but(batches=labels_from_another_stream)


def signature(run: Run) -> Evidence | None:
    changing, loss = run.facts.get("relabelled", 0.0), late_loss(run)
    if run.facts.get("val_trained_on_by_chance", 0.0) > COMMON:
        return None
    if changing < CHANGING or not input_deviation(run) > NOT_BLANK or not loss > NOTHING_LEARNED * chance_loss(run):
        return None
    return Evidence(
        seen=f"{changing:.0%} of the images that came again had a different label, and the loss is {loss:.2f}",
        usual="0 %: an image keeps its label",
        onset=0,
        place="labels",
        confidence=0.97,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Labels detached from images",
    cures={"the same order for images and labels": sick.but(batches="shuffled")},
    false_cures={
        "a larger batch": sick.but(batch_size=512),
        "Adam": sick.but(optimizer="adam", lr=0.003),
    },
    harm=0.85,
    symptom="The loss stays at chance level no matter how long the net trains, although gradients flow and weights "
    "change.",
    mechanism="Over the epochs every image comes with every label, so the best prediction is always the same: the "
    "class frequencies. Not even memorising is possible.",
    formula=r"p(y \mid x) = p(y) \quad \Rightarrow \quad \min L = -\sum_k p_k \ln p_k",
    first_check="Follow one image through two epochs, and compare its labels.",
    remedy="Draw images and labels with the same index, in one place. Overfitting a single batch does not find this "
    "bug: within one batch each image has one label.",
    reference="Karpathy, A Recipe for Training Neural Networks (2019)",
    looks="never moves",
    shows="probe_accuracy",
    knobs=(
        Knob("steps", (100, 1000)),
        Knob("lr", (0.01, 0.3), log=True),
        Knob("batch_size", (32, 512), log=True),
    ),
)
