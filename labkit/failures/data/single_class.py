"""A filter lets one class through: the net learns to say "three", whatever it sees."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.failures.signs import label_shares, late_loss
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of the most frequent label among all samples trained on. Healthy: 0.10 to 0.12.
ALONE = 0.999
ENOUGH = 100  # samples; fewer could be of one class by chance, or be one tiny batch
WRONG = 0.5  # validation accuracy; one class of ten gives 0.12

CLASS = 3
healthy = Recipe(momentum=0.0, steps=300)


def only_threes(split, recipe, generator):
    """The usual batches from a training set of which a filter left one class."""
    chosen = split.y == CLASS
    return shuffled(split._replace(x=split.x[chosen], y=split.y[chosen]), recipe, generator)


sick = healthy.but(batches=only_threes)


def signature(run: Run) -> Evidence | None:
    shares = label_shares(run)
    if len(shares) < 2 or shares.max() < ALONE or len(run) * run.facts.get("batch_length", 0) < ENOUGH:
        return None
    if not run["val_accuracy"][-1] < WRONG:
        return None
    return Evidence(
        seen=f"{shares.max():.0%} of the training labels are class {int(shares.argmax())}; the training loss is "
        f"{late_loss(run):.1g}, the validation accuracy {run['val_accuracy'][-1]:.0%}",
        usual=f"{len(shares)} classes, each with some {1 / len(shares):.0%}",
        onset=0,
        place="labels",
        confidence=0.98,
    )


failure = FailureMode(
    title="A single class",
    healthy=healthy,
    sick=sick,
    cures={"all ten classes": sick.but(batches="shuffled")},
    false_cures={
        "weight decay 0.01": sick.but(weight_decay=0.01),
        "dropout 0.5": sick.but(dropout=0.5),
    },
    signature=signature,
    harm=0.85,
    symptom="The training loss falls to zero faster than any task could be learned, and the validation accuracy is "
    "that of one class.",
    mechanism="One label for every image is learned by the bias of the last layer alone. Nothing rewards looking at "
    "the image.",
    first_check="Count the labels of a few batches. A loss of zero in a hundred steps is a warning.",
    remedy="Look for the filter, the sorted file cut short, or the folder that was read alone; then count again.",
    reference="Buda, Maki and Mazurowski, A systematic study of the class imbalance problem (2018), at its extreme",
    looks="validation worse",
    shows="label_entropy",
    knobs=(
        Knob("lr", (0.01, 0.3), log=True),
        Knob("steps", (50, 400)),
        Knob("dropout", (0.0, 0.9)),
    ),
)
