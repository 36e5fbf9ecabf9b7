"""First aid: the remedies that the failure modes list as cures or false cures, each as one claim over all its modes."""

from collections.abc import Callable

from labkit.diagnosis.evaluation.folklore.claim import Claim, Setting, at_least
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.recording.measure import ACCURACY, MEASURES
from labkit.training.recipe import Recipe

Changes = dict[str, tuple]


def only(name: str, fits: Callable = lambda old, new: True) -> Callable[[Changes], bool]:
    """Is this entry the only one that the remedy changes, and does it change it so?"""
    return lambda changes: set(changes) == {name} and fits(*changes[name])


def rises(old, new) -> bool:
    return new > old


def falls(old, new) -> bool:
    return new < old


def to_batch_norm(old, new) -> bool:
    return new == "batch"


def to_adam(changes: Changes) -> bool:
    return changes.get("optimizer", ("", ""))[1] == "adam" and set(changes) <= {"optimizer", "lr"}


def more_regularised(changes: Changes) -> bool:
    return set(changes) in ({"weight_decay"}, {"dropout"}) and all(rises(*change) for change in changes.values())


REMEDIES: dict[str, tuple[str, Callable[[Changes], bool]]] = {
    "clip_it": ("When training fails, clip the gradient norm.", only("clip", lambda old, new: new == 1)),
    "lower_the_rate": ("When training fails, lower the learning rate.", only("lr", falls)),
    "raise_the_rate": ("When training is stuck, raise the learning rate.", only("lr", rises)),
    "use_adam": ("When SGD fails, use Adam.", to_adam),
    "train_longer": ("When the accuracy is low, train longer.", only("steps", rises)),
    "use_a_wider_net": ("When the accuracy is low, use a larger net.", only("width", rises)),
    "add_batch_norm": ("When a net does not train, add batch norm.", only("normalisation", to_batch_norm)),
    "regularise": ("When validation is worse than training, it overfits: regularise.", more_regularised),
    "add_momentum": ("When training is noisy or slow, add momentum.", only("momentum", rises)),
}  # fmt: skip


def remedies_of(mode: FailureMode) -> dict[str, Recipe]:
    """Every recipe that the mode lists as a cure or a false cure, except the healthy twin: that undoes the fault."""
    return {words: recipe for words, recipe in (mode.cures | mode.false_cures).items() if recipe != mode.healthy}


def cases_of(fits: Callable[[Changes], bool]) -> tuple[Setting, ...]:
    """Where this remedy was tried: the first such recipe of each mode whose harm shows in the accuracy."""
    found = {}
    for mode in FAILURES.values():
        if mode.harm and mode.healthy.processes == 1 and mode.measure.name == ACCURACY:
            for recipe in remedies_of(mode).values():
                if fits(recipe.changes_from(mode.sick)):
                    found.setdefault(mode.name, Setting(mode.name, recipe, mode.healthy))
    return tuple(found.values())


claims = tuple(
    Claim(
        name,
        says,
        source="often said; the cures and false cures of the failure modes",
        predicts=at_least(-100 * MEASURES[ACCURACY].close),
        seeds=3,
        settings=cases_of(fits),
        note="A setting is a failure mode whose file lists the remedy, as a cure or as a false one; the control is its "
        "healthy twin. Cured is at most two points less, as in the modes' contract.",
    )
    for name, (says, fits) in REMEDIES.items()
)
