"""What a failure mode is: a healthy recipe, what breaks it, how it shows, what cures it, and the words for people."""

from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.training.rules import RecipeError, near
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

DATASETS = ("mnist", "cifar10")
CLOSE = 0.02  # a cure brings the validation accuracy within two points of the healthy twin
# Below this a run has not learned. Chance is 0.1; healthy short runs reach 0.91 or more on MNIST and, as
# perceptrons without convolutions, 0.36 or more on CIFAR-10.
LEARNED = {"mnist": 0.85, "cifar10": 0.3}


@dataclass(frozen=True)
class Evidence:
    """What a signature saw: the number beside the usual one, where, and since which step."""

    seen: str
    usual: str
    onset: int
    place: str = ""
    confidence: float = 0.9  # below 1 always: instruments see symptoms, never the code


@dataclass(frozen=True)
class Knob:
    """A recipe entry worth turning here, with its sensible range: two ends for a slider, or a list of choices."""

    name: str
    values: tuple
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class FailureMode:
    """One way in which training fails. Everything the lab knows about it stands in one file."""

    title: str
    healthy: Recipe
    sick: Recipe
    cures: dict[str, Recipe]  # in words -> recipe; the first is the one that is shown and proven everywhere
    signature: Callable[[Run], Evidence | None]  # reads the instruments, never the recipe
    harm: float  # share of what the healthy twin learns above chance that is lost, at least; 0: see `costs`
    symptom: str
    mechanism: str
    first_check: str
    remedy: str
    reference: str
    looks: str  # what anybody sees in the curves: one of readings.LOOKS
    shows: str  # the trace that gives it away
    knobs: tuple[Knob, ...]
    false_cures: dict[str, Recipe] = field(default_factory=dict)  # first aid that does not help
    also_causes: tuple[str, ...] = ()  # failures that appear as its consequence
    faces: dict[str, dict] = field(default_factory=dict)  # other appearances: changes to all recipes alike
    cifar10: dict | str = field(default_factory=dict)  # what else changes in all recipes there; or why it is not there
    costs: str = ""  # what is lost where the accuracy does not fall, or not by much
    close: float = CLOSE  # how near the cure comes to the healthy twin
    limit: str = ""  # why it comes no nearer, where it does not
    learned: dict[str, float] = field(default_factory=dict)  # where healthy runs of these nets reach less than LEARNED
    # Where the sick recipe puts the fault, in the diagnosis's words, any of them; entries of the recipe in braces, and
    # {departure} for the step at which the run leaves its twin's path. Empty where it is everywhere or nowhere.
    where: tuple[str, ...] = ()
    raises: bool = False  # the failure is an error, and the signature reads it
    name: str = ""  # the file's name and folder: filled in when the file is found
    topic: str = ""

    def recipes(self, *, dataset: str = "mnist", face: str | None = None, seed: int = 0) -> dict[str, Recipe]:
        """The healthy, sick and cured recipes, in the same setting and with the same seed."""
        setting = self.setting(dataset, face) | {"seed": seed}
        cured = next(iter(self.cures.values()))
        roles = {"healthy": self.healthy, "sick": self.sick, "cured": cured}
        return {role: recipe.but(**setting) for role, recipe in roles.items()}

    def enough(self, dataset: str) -> float:
        """The validation accuracy from which a run counts as having learned; 0 on data we know nothing of."""
        return (LEARNED | self.learned).get(dataset, 0.0)

    def on(self, dataset: str) -> bool:
        """Is there a version of it on this data set?"""
        return not (dataset == "cifar10" and isinstance(self.cifar10, str))

    def setting(self, dataset: str = "mnist", face: str | None = None) -> dict:
        """What a data set and a face change, in every recipe of the mode alike."""
        if dataset not in DATASETS:
            raise RecipeError(
                f"dataset: expected one of {', '.join(DATASETS)}, got {dataset!r}. {near(dataset, DATASETS)}"
            )
        if face is not None and face not in self.faces:
            known = near(face, self.faces) if self.faces else "It has only one."
            raise RecipeError(f"{self.name} has no face {face!r}. {known}")
        if not self.on(dataset):
            raise RecipeError(f"{self.name} has no CIFAR-10 version: {self.cifar10}")
        changes = {"data": dataset} | (self.cifar10 if dataset == "cifar10" else {})
        return changes | (self.faces[face] if face else {})
