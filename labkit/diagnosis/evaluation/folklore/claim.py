"""A claim: one sentence that people say about training, the runs that test it, and what they should show."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from labkit.diagnosis.evaluation.folklore.measures import ACCURACY, Measure
from labkit.errors import RecipeError
from labkit.training.recipe import Recipe

OFTEN_SAID = "often said"  # where no single source can be named
SEEDS = 5
FEWEST_SEEDS = 3  # an interval from two runs is 13 standard errors wide
# Points of accuracy. Intervals over five seeds reached 0.3 to 0.9 to either side on the first claims measured: a
# smaller tolerance than one point could hardly be shown.
NOTICEABLE, TOLERABLE = 0.5, 1.0


@dataclass(frozen=True)
class Range:
    """What a claim says about the effect: the values of it that would bear the claim out."""

    low: float = -math.inf
    high: float = math.inf

    def words(self, measure: Measure, sign: bool = True) -> str:
        low, high = (measure.words(value, sign) for value in (self.low, self.high))
        if self.high == math.inf:
            return f"at least {low} {measure.unit}"
        if self.low == -math.inf:
            return f"at most {high} {measure.unit}"
        return f"{low} to {high} {measure.unit}"


def at_least(low: float) -> Range:
    return Range(low=low)


def at_most(high: float) -> Range:
    return Range(high=high)


def within(margin: float) -> Range:
    """No difference that counts, in either direction."""
    return Range(-margin, margin)


HELPS = at_least(NOTICEABLE)
HURTS = at_most(-NOTICEABLE)
HARMLESS = at_least(-TOLERABLE)
NO_DIFFERENCE = within(TOLERABLE)


@dataclass(frozen=True)
class Setting:
    """Where a claim is tried. The effect is that of `treated` minus that of `control`, seed by seed.

    Without a control the effect is the measured value itself. A recipe that must be found first, such as the learning
    rate of a range test, is a function of the seed.
    """

    words: str
    treated: Recipe | Callable[[int], Recipe]
    control: Recipe | None = None

    def recipes(self, seed: int) -> tuple[Recipe, Recipe | None]:
        """The treated and the control recipe with this seed."""
        treated = self.treated.but(seed=seed) if isinstance(self.treated, Recipe) else self.treated(seed)
        return treated, self.control and self.control.but(seed=seed)


@dataclass(frozen=True)
class Claim:
    """One sentence that people say, with everything that is needed to try it."""

    name: str
    says: str
    _: KW_ONLY
    source: str = OFTEN_SAID
    settings: tuple[Setting, ...]
    predicts: Range
    measure: Measure = ACCURACY
    control_measure: Measure | None = None  # where the two sides are read differently
    seeds: int = SEEDS
    note: str = ""  # what a reader must know to judge the experiment

    def __post_init__(self):
        words = [setting.words for setting in self.settings]
        if not words or len(set(words)) < len(words):
            raise RecipeError(f"{self.name}: expected one or more settings with different words, got {words}")
        if self.seeds < FEWEST_SEEDS:
            raise RecipeError(f"{self.name}: expected at least {FEWEST_SEEDS} seeds, got {self.seeds}")
        if self.predicts.low > self.predicts.high or self.predicts == Range():
            raise RecipeError(f"{self.name}: expected a range of effects that some lie in and some do not")

    @property
    def measures(self) -> tuple[Measure, Measure]:
        """Of the treated and of the control run."""
        return self.measure, self.control_measure or self.measure
