"""A filter lets only one class through: the net learns to predict 'three' for every image."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.recording.summaries import label_shares, late_loss
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of the most frequent label among all samples trained on. Healthy: 0.10 to 0.12.
ALONE = 0.999
ENOUGH = 100  # samples; fewer could be of one class by chance, or come from one tiny batch
WRONG = 0.5  # validation accuracy; one class of ten gives 0.12

CLASS = 3
healthy = Recipe(steps=300)


def only_threes(split, recipe, generator):
    """The usual batches from a training set after a filter that keeps one class."""
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
        usual=f"{len(shares)} classes, each with about {1 / len(shares):.0%}",
        onset=0,
        place="labels",
        confidence=0.98,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Single class",
    cures={"all ten classes": sick.but(batches="shuffled")},
    false_cures={
        "weight decay 0.01": sick.but(weight_decay=0.01),
        "dropout 0.5": sick.but(dropout=0.5),
    },
    harm=0.85,
    symptom="The training loss falls to zero faster than any task can be learned, and the validation accuracy is the "
    "share of one class.",
    mechanism="The bias of the last layer alone learns one label for every image. Nothing rewards using the image.",
    formula=r"p(y = k) = 1 \quad \Rightarrow \quad b_k \to \infty",
    first_check="Count the labels of a few batches. A loss of zero after a hundred steps is a warning.",
    remedy="Look for the filter, the truncated sorted file, or the single folder that was read; then count again.",
    reference="Buda, Maki and Mazurowski, A systematic study of the class imbalance problem (2018), at its extreme",
    looks="validation worse",
    shows="label_entropy",
    knobs=(
        Knob("lr", (0.01, 0.3), log=True),
        Knob("steps", (50, 400)),
        Knob("dropout", (0.0, 0.9)),
    ),
)
