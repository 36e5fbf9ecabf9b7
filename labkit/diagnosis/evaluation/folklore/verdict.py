"""From the effects of several seeds to a verdict, by rule."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.diagnosis.evaluation.folklore.claim import Range
from labkit.errors import RecipeError

HOLDS, ONLY_IF, FAILS, UNCLEAR = "holds", "holds only if", "does not hold here", "unclear"
VERDICTS = (FAILS, ONLY_IF, HOLDS, UNCLEAR)  # in the order of the page: what surprises comes first

# Student's t: how many standard errors a 95 % interval reaches to either side, for 2, 3, ... seeds.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093)  # fmt: skip
MOST_SEEDS = len(T_95) + 1


@dataclass(frozen=True)
class Effect:
    """The mean of paired differences, with its 95 % interval."""

    mean: float
    low: float
    high: float


def effect(differences: Sequence[float]) -> Effect:
    """The mean over the seeds and Student's 95 % interval of it."""
    if not 2 <= len(differences) <= MOST_SEEDS:
        raise RecipeError(f"seeds: expected 2 to {MOST_SEEDS}, got {len(differences)}")
    if not all(map(math.isfinite, differences)):
        raise RecipeError(f"an effect must be finite for every seed, got {list(differences)}")
    mean = statistics.fmean(differences)
    error = T_95[len(differences) - 2] * statistics.stdev(differences) / math.sqrt(len(differences))
    return Effect(mean, mean - error, mean + error)


def verdict(found: Effect, predicts: Range) -> str:
    """Holds where the whole interval lies in the predicted range, fails where no part of it does, else unclear."""
    if predicts.low <= found.low and found.high <= predicts.high:
        return HOLDS
    if found.high < predicts.low or found.low > predicts.high:
        return FAILS
    return UNCLEAR


def overall(verdicts: Sequence[str]) -> str:
    """Of all settings together. Where it holds in one and fails in another, it holds only if."""
    if HOLDS in verdicts and FAILS in verdicts:
        return ONLY_IF
    return verdicts[0] if len(set(verdicts)) == 1 else UNCLEAR
