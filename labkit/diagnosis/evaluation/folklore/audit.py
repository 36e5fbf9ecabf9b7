"""Try claims on real runs: train what they need, each run once, and read the measures."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.diagnosis.evaluation.folklore.claim import FEWEST_SEEDS, Claim, Range
from labkit.diagnosis.evaluation.folklore.measures import Measure
from labkit.diagnosis.evaluation.folklore.verdict import MOST_SEEDS, Effect, effect, overall, verdict
from labkit.diagnosis.study import finished
from labkit.errors import RecipeError
from labkit.recording.machine import cpu_name
from labkit.training import run_store
from labkit.training.parallel import check_jobs, spread
from labkit.training.recipe import Recipe

# Seconds of one core per step of batch 128, with all instruments (an idle core of an AMD EPYC); others count as "mlp".
SECONDS_PER_STEP = {"mlp": 0.002, "convnet": 0.007, "rnn": 0.008, "vit": 0.02, "gpt": 0.05}

AUGMENTING = 0.02  # seconds more per step: each image is changed on its own


@dataclass(frozen=True)
class Trial:
    """One setting of a claim as it was measured: a value per seed, in the unit of the measure."""

    words: str
    treated: tuple[float, ...]
    control: tuple[float, ...] | None

    @property
    def effect(self) -> Effect:
        if self.control is None:
            return effect(self.treated)
        return effect([one - other for one, other in zip(self.treated, self.control, strict=True)])

    def verdict(self, predicts: Range) -> str:
        return verdict(self.effect, predicts)


@dataclass(frozen=True)
class Result:
    """One claim as it was measured, and where."""

    claim: Claim
    trials: tuple[Trial, ...]
    machine: str
    torch: str

    @property
    def seeds(self) -> int:
        return len(self.trials[0].treated)

    @property
    def verdicts(self) -> list[str]:
        return [trial.verdict(self.claim.predicts) for trial in self.trials]

    @property
    def verdict(self) -> str:
        return overall(self.verdicts)


def audit(claims: Sequence[Claim], *, seeds: int | None = None, jobs: int = 1, folder: Path | None = None):
    """Yield the result of each claim in turn. `seeds`: as many for each claim, instead of its own number.

    Runs are taken from and kept in the store in `folder`, or in the user's cache folder: an audit that was interrupted
    goes on where it was, and runs that several claims share are trained once.
    """
    check_jobs(jobs)
    if seeds is not None and not FEWEST_SEEDS <= seeds <= MOST_SEEDS:
        raise RecipeError(f"seeds: expected {FEWEST_SEEDS} to {MOST_SEEDS}, got {seeds}")
    return _results(claims, seeds, jobs, folder)


def _results(claims: Sequence[Claim], seeds: int | None, jobs: int, folder: Path | None):
    for claim in claims:
        numbers = range(seeds or claim.seeds)
        asked = [setting.recipes(seed) for setting in claim.settings for seed in numbers]
        runs = list(dict.fromkeys(recipe for pair in asked for recipe in pair if recipe))
        measured = spread(readings, [(recipe, claim.measures, folder) for recipe in runs], jobs, unit="run")
        found = dict(zip(runs, measured, strict=True))
        trials = tuple(_trial(setting.words, [found_of(found, setting, seed) for seed in numbers])
                       for setting in claim.settings)  # fmt: skip
        yield Result(claim, trials, cpu_name(), torch.__version__)


def found_of(found: dict[Recipe, tuple], setting, seed: int) -> tuple[float, float | None]:
    treated, control = setting.recipes(seed)
    return found[treated][0], found[control][1] if control else None


def _trial(words: str, pairs: list[tuple[float, float | None]]) -> Trial:
    treated, control = zip(*pairs, strict=True)
    return Trial(words, treated, None if control[0] is None else control)


def readings(recipe: Recipe, measures: tuple[Measure, Measure], folder: Path | None) -> tuple[float, ...]:
    """Train one recipe, or take its run from the store: its value as the treated and as the control run."""
    run = finished(run_store.on_disk(folder), recipe, progress=False)
    values = tuple(each.read(run) for each in measures)
    if not all(map(math.isfinite, values)):
        names = ", ".join(each.name for each in measures)
        raise RecipeError(f"{names}: expected a finite number, got {values}; choose a measure that a failed run has")
    return values


def estimate(
    claims: Iterable[Claim], seeds: int | None = None, *, folder: Path | None = None, kept: bool = True
) -> tuple[int, int, float]:
    """How many runs these claims need, how many of them are not in the store, and how many seconds those take.

    With `kept=False`, as if the store were empty.
    """
    wanted = set()
    for claim in claims:
        for seed in range(seeds or claim.seeds):
            for setting in claim.settings:
                parts = setting.treated, setting.control
                wanted |= {each.but(seed=seed) for each in parts if isinstance(each, Recipe)}
                wanted |= {(each, seed) for each in parts if each is not None and not isinstance(each, Recipe)}
    store = run_store.on_disk(folder)
    missing = [each for each in wanted if not (kept and _is_kept(store, each))]
    return len(wanted), len(missing), sum(map(_seconds, missing))


def _is_kept(store: run_store.RunStore, recipe) -> bool:
    path = store.path(recipe) if isinstance(recipe, Recipe) else None
    return path is not None and path.exists()


def _seconds(recipe) -> float:
    if not isinstance(recipe, Recipe):
        return 2.0  # one that is found first: a range test and a run
    name = recipe.model.__name__
    kind = next((known for known in SECONDS_PER_STEP if known in name), "mlp")
    augmenting = 0.0 if recipe.augment == "none" else AUGMENTING
    return recipe.steps * (SECONDS_PER_STEP[kind] * max(1.0, recipe.batch_size / 512) + augmenting)
