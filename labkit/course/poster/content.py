"""The texts of the poster: the checklist before every run, and the symptom tree."""

from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import Symptom

PREFLIGHT = (
    "The first loss is near ln(classes).",
    "One batch of 32 can be memorised.",
    "Inputs are finite: mean 0, standard deviation 1.",
    "The outputs have one column per class.",
    "Every parameter receives gradient.",
    "One step lowers the loss on its own batch.",
    "No image is in both training and validation.",
    "Validation images are not augmented.",
    "train() to train; eval() and no_grad() to validate.",
    "Checkpoints include optimizer and schedule; LR is logged.",
)
# The symptoms in the words of the poster, in its order.
SYMPTOMS: dict[Symptom, str] = {
    "not finite": "The loss is NaN or infinite",
    "jumps": "The loss jumps, ends at chance",
    "never moves": "The loss never moves",
    "validation worse": "Only the validation loss rises",
}


def symptom_tree() -> dict[str, dict[str, tuple[tuple[str, str], ...]]]:
    """Symptom -> what to check -> (reading, name of the failure mode), from the branches of all modes."""
    leaves = [(branch, name) for name, mode in FAILURES.items() for branch in mode.symptom_tree]
    tree: dict = {words: {} for words in SYMPTOMS.values()}
    for branch, name in sorted(leaves, key=lambda leaf: leaf[0].place):
        questions = tree[SYMPTOMS[branch.symptom]]
        questions[branch.question] = (*questions.get(branch.question, ()), (branch.reading, name))
    return tree


TREE = symptom_tree()
