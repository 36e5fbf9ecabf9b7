"""What a failure mode is: a healthy recipe, what breaks it, how it shows, what cures it, and the words for people."""

from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.knob import RecipeError, near
from labkit.recipe import Recipe
from labkit.run import Run

DATASETS = ("mnist", "cifar10")


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
    harm: float  # share of what the healthy twin learns above chance that is lost, at least; from 0 to 1
    symptom: str
    mechanism: str
    first_check: str
    remedy: str
    reference: str
    shows: str  # the trace that gives it away
    knobs: tuple[Knob, ...]
    false_cures: dict[str, Recipe] = field(default_factory=dict)  # first aid that does not help
    also_causes: tuple[str, ...] = ()  # failures that appear as its consequence
    faces: dict[str, dict] = field(default_factory=dict)  # other appearances: changes to all recipes alike
    cifar10: dict = field(default_factory=dict)  # what else changes in all recipes there
    name: str = ""  # the file's name and folder: filled in when the file is found
    topic: str = ""

    def recipes(self, *, dataset: str = "mnist", face: str | None = None, seed: int = 0) -> dict[str, Recipe]:
        """The healthy, sick and cured recipes, in the same setting and with the same seed."""
        setting = self.setting(dataset, face) | {"seed": seed}
        cured = next(iter(self.cures.values()))
        roles = {"healthy": self.healthy, "sick": self.sick, "cured": cured}
        return {role: recipe.but(**setting) for role, recipe in roles.items()}

    def setting(self, dataset: str = "mnist", face: str | None = None) -> dict:
        """What a data set and a face change, in every recipe of the mode alike."""
        if dataset not in DATASETS:
            raise RecipeError(
                f"dataset: expected one of {', '.join(DATASETS)}, got {dataset!r}. {near(dataset, DATASETS)}"
            )
        if face is not None and face not in self.faces:
            known = near(face, self.faces) if self.faces else "It has only one."
            raise RecipeError(f"{self.name} has no face {face!r}. {known}")
        changes = {"data": dataset} | (self.cifar10 if dataset == "cifar10" else {})
        return changes | (self.faces[face] if face else {})
