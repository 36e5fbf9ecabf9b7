"""A failure mode: a healthy recipe, the change that breaks it, its signature, its cures and its explanation."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from math import isnan, nan
from typing import Literal, get_args

from labkit.errors import RecipeError, near
from labkit.failures.signs import Look
from labkit.recording.measure import MEASURES, Measure
from labkit.recording.run import Run
from labkit.training.recipe import Recipe

DATASETS = ("mnist", "cifar10")

# What a mode can show: traces that can be plotted, and quantities computed from traces (`gap`) or facts of a run.
Shown = Literal[
    "activation_mean", "activation_saturated", "activation_size", "activation_std", "attention_entropy",
    "attention_logit", "cache_difference", "leak_changed", "leak_cut", "log_z", "own_token",
    "position_loss", "position_signal", "shift_loss",
    "val_stopped", "val_surprise", "word_loss", "written",
    "batch_softmax_distance", "dead", "gap", "grad_max", "grad_mean", "grad_min", "grad_near_zero", "grad_norm",
    "grad_norm_total", "grad_std", "input_max", "input_outliers", "label_entropy", "loss", "loss_scale", "lr",
    "nonlinearity", "origin", "probe_accuracy", "probe_loss", "sample_loss_mean", "sample_loss_variance",
    "train_mode", "twins", "update_norm", "update_ratio", "val_accuracy", "val_confidence", "val_input_mean",
    "val_input_std", "val_legible", "val_loss", "val_nats", "val_train_mode",
    "val_with_gradients", "weight_norm",
]  # fmt: skip
# What the symptom tree on the poster begins with; its words are in `course/poster/content.py`.
Symptom = Literal["not finite", "jumps", "never moves", "validation worse"]


@dataclass(frozen=True)
class Evidence:
    """What a signature found: the measured value, the usual one, the place and the step of onset."""

    seen: str
    usual: str
    onset: int
    place: str = ""
    confidence: float = 0.9  # always below 1: instruments see symptoms, never the code


@dataclass(frozen=True)
class Knob:
    """A recipe entry worth varying here, with a sensible range: the two ends of a slider, or a list of choices."""

    name: str
    values: tuple
    log: bool = False


@dataclass(frozen=True)
class Branch:
    """A leaf of the symptom tree on the poster: the symptom, what to check next, and the reading that identifies it."""

    symptom: Symptom
    question: str
    reading: str
    place: int = 1  # position among the branches of its symptom


@dataclass(frozen=True)
class ClassicCurve:
    """A card in the gallery of classic loss curves: its position, and what the curve does."""

    place: int
    curve: str


@dataclass(frozen=True)
class FailureMode:
    """One way in which training fails. Everything the lab knows about it is in one file, which ends with

    failure = FailureMode(__name__, healthy, sick, signature, title=..., cures=..., ...)
    """

    module: str  # the file's __name__: labkit.failures.<topic>.<name>
    healthy: Recipe
    sick: Recipe
    signature: Callable[[Run], Evidence | None]  # reads the instruments, never the recipe
    _: KW_ONLY
    title: str
    cures: dict[str, Recipe]  # description -> recipe; the first is the one that is shown and verified everywhere
    harm: float  # minimum share of the healthy twin's score above chance that is lost; 0: see `costs`
    symptom: str
    mechanism: str
    first_check: str
    remedy: str
    reference: str
    looks: Look  # what the curves show at a glance
    shows: Shown  # the trace that identifies it
    knobs: tuple[Knob, ...]
    false_cures: dict[str, Recipe] = field(default_factory=dict)  # plausible fixes that do not help
    formula: str = ""  # the mechanism as one line of LaTeX, where it has one
    also_causes: tuple[str, ...] = ()  # failures that it causes in turn
    faces: dict[str, dict] = field(default_factory=dict)  # variants: changes made to all recipes alike
    cifar10: dict = field(default_factory=dict)  # further changes to all recipes on CIFAR-10
    not_on_cifar10: str = ""  # why there is no CIFAR-10 version, if there is none
    costs: str = ""  # what is lost if the score falls little or not at all
    close: float = nan  # how close the cure comes to the healthy twin's score; by default as its measure says
    limit: str = ""  # why the cure comes no closer, if `close` exceeds that
    learned: dict[str, float] = field(default_factory=dict)  # for nets whose healthy runs reach less than is usual
    # Places of the fault that count as correct in a diagnosis. Recipe entries go in braces; {departure} is the step at
    # which the run departs from its twin. Empty if the fault is everywhere or nowhere.
    where: tuple[str, ...] = ()
    raises: bool = False  # the failure is an exception, which the signature reads
    kills_units: bool = False  # its sign is dead units: a separate outcome in the phase diagram
    depends_on: tuple[str, ...] = ()  # recipe entries that it needs to occur, besides those it changes
    headline: int | None = None  # its rank among the failures everybody should know: on the poster and in the ward
    symptom_tree: tuple[Branch, ...] = ()  # its leaves in the symptom tree of the poster
    classic: ClassicCurve | None = None  # its card in the gallery, if its loss curve is a classic
    not_in_ward: str = ""  # why no patient of the ward has it, if `course/ward/cases.is_solvable` cannot tell

    def __post_init__(self):
        for entry, given, known in (
            ("looks", self.looks, get_args(Look)),
            ("shows", self.shows, get_args(Shown)),
            *(("symptom of a Branch", branch.symptom, get_args(Symptom)) for branch in self.symptom_tree),
        ):
            if given not in known:
                raise RecipeError(f"{self.name}: {entry} must be a known name, got {given!r}. {near(given, known)}")
        if isnan(self.close):
            object.__setattr__(self, "close", self.measure.close)
        if self.cifar10 and self.not_on_cifar10:
            raise RecipeError(f"{self.name}: has changes for CIFAR-10 (cifar10) and a not_on_cifar10 reason; drop one")

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.module.split(".")[-1]

    @property
    def topic(self) -> str:
        """The folder of its file; empty for a mode defined in a notebook."""
        return self.module.rpartition(".")[0].split(".")[-1]

    def recipes(self, *, dataset: str = "mnist", face: str | None = None, seed: int = 0) -> dict[str, Recipe]:
        """The healthy, sick and cured recipes, in the same setting and with the same seed."""
        setting = self.setting(dataset, face) | {"seed": seed}
        cured = next(iter(self.cures.values()))
        roles = {"healthy": self.healthy, "sick": self.sick, "cured": cured}
        return {role: recipe.but(**setting) for role, recipe in roles.items()}

    @property
    def measure(self) -> Measure:
        """What says how good its runs are: the accuracy, unless its recipes say otherwise."""
        return MEASURES[self.healthy.measure]

    @property
    def own_data(self) -> str | None:
        """The name of its healthy recipe's data, where these are not one of DATASETS: MNIST as tokens, for instance."""
        data = self.healthy.summary()["data"]
        return None if data in DATASETS else data

    def enough(self, dataset: str) -> float:
        """The score from which a run counts as having learned; for an unknown data set, any."""
        return (self.measure.learned | self.learned).get(self.own_data or dataset, self.measure.worst)

    def on(self, dataset: str) -> bool:
        """Does it have a version on this data set?"""
        return not (dataset == "cifar10" and self.not_on_cifar10)

    def setting(self, dataset: str = "mnist", face: str | None = None) -> dict:
        """The changes for a data set and a face, the same in every recipe of the mode."""
        if dataset not in DATASETS:
            raise RecipeError(
                f"dataset: expected one of {', '.join(DATASETS)}, got {dataset!r}. {near(dataset, DATASETS)}"
            )
        if face is not None and face not in self.faces:
            known = near(face, self.faces) if self.faces else "It has only one."
            raise RecipeError(f"{self.name} has no face {face!r}. {known}")
        if not self.on(dataset):
            raise RecipeError(f"{self.name} has no CIFAR-10 version: {self.not_on_cifar10}")
        changes = ({} if self.own_data else {"data": dataset}) | (self.cifar10 if dataset == "cifar10" else {})
        return changes | (self.faces[face] if face else {})
