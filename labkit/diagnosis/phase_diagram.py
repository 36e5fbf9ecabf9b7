"""The phase diagram: a grid of recipes, every cell a real run, and what became of it."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import joblib
import torch
from tqdm.auto import tqdm

from labkit.training.run_store import Archive
from labkit.diagnosis.diagnose import Diagnosis, diagnose, evidence_of
from labkit.failures.mode import LEARNED
from labkit.failures import FAILURES
from labkit.training.rules import RecipeError
from labkit.failures.signs import looks
from labkit.training.recipe import COUNT, Recipe
from labkit.recording.run import Run
from labkit.training.loop import train

# A short run of a narrow net: long enough for a healthy one to learn (91 % at its best), short enough for many.
STANDARD = Recipe(steps=150, samples=5_000, width=64, init="he", momentum=0.0)
AXES = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "depth": (2, 3, 5, 8, 12)}
MOST_AXES = 3  # columns, rows, and one more to turn pages with
USUAL = 0.5  # the accuracy from which a run has learned on data that we know nothing of
AT_CHANCE = 1.3  # times the accuracy of guessing; one class of ten always named scores 0.08 to 0.12
DEATHS = ("dead_relu", "dead_relu_by_learning_rate")
OUTCOMES = {  # in words; from the best to the worst
    "learned": "it learned",
    "slow": "it is learning, and has not come far",
    "never moved": "it is where it began, at chance",
    "dead": "its units are silent, and it is at chance",
    "diverged": "the loss left for good, or is not a number",
    "error": "training ended with an error",
}

Place = tuple  # one value for each axis


@dataclass(frozen=True)
class Cell:
    """One run of the grid, and its outcome."""

    recipe: Recipe
    run: Run

    @property
    def accuracy(self) -> float | None:
        return self.run.accuracy

    @functools.cached_property
    def outcome(self) -> str:
        return outcome(self.run, self.recipe.summary()["data"])

    @functools.cached_property
    def diagnoses(self) -> list[Diagnosis]:
        return diagnose(self.run)


def outcome(run: Run, dataset: str = "mnist") -> str:
    """What became of a run: one of OUTCOMES."""
    look, accuracy = looks(run), run.accuracy or 0.0
    if look == "error":
        return "error"
    if look in ("not finite", "jumps"):
        return "diverged"
    if accuracy >= LEARNED.get(dataset, USUAL):
        return "learned"
    if any(evidence_of(FAILURES[name], run) for name in DEATHS):
        return "dead"
    return "never moved" if accuracy <= AT_CHANCE / run.facts["classes"] else "slow"


@dataclass
class Phase:
    """A recipe, the axes it is varied along, and the cells that are known so far."""

    recipe: Recipe = STANDARD
    axes: dict[str, tuple] = field(default_factory=lambda: dict(AXES))
    cells: dict[Place, Cell] = field(default_factory=dict)
    recipes: dict[Place, Recipe] = field(init=False)

    def __post_init__(self):
        if not 2 <= len(self.axes) <= MOST_AXES:
            raise RecipeError(f"expected two or three axes, such as lr=(0.1, 1) and depth=(2, 5), got {len(self.axes)}")
        for name, values in self.axes.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise RecipeError(f"{name}: expected a list of values, got {values!r}")
        self.axes = {name: tuple(dict.fromkeys(values)) for name, values in self.axes.items()}
        self.recipes = {  # every cell's, by its place; a value that no recipe takes is refused now
            place: self.recipe.but(**dict(zip(self.axes, place, strict=True)))
            for place in itertools.product(*self.axes.values())
        }

    def __getitem__(self, place: Place) -> Cell:
        if place not in self.recipes:
            raise RecipeError(f"there is no cell {place!r}; expected one value each of {', '.join(self.axes)}")
        if place not in self.cells:
            raise RecipeError(f"the cell {place!r} was not trained; explore the grid first")
        return self.cells[place]

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have which outcome, the best first."""
        found = [cell.outcome for cell in self.cells.values()]
        return {name: found.count(name) for name in OUTCOMES if name in found}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return (
            f"<Phase of {' x '.join(self.axes)}: {len(self.cells)} of {len(self.recipes)} runs: {counts or 'none yet'}>"
        )

    def _repr_html_(self) -> str:
        from labkit.drawing.html import picture_html  # only a notebook needs it

        return picture_html(self.plot().figure, repr(self).strip("<>"))

    def plot(self, ax=None, page=None):
        from labkit.diagnosis.phase_plots import phase_diagram

        return phase_diagram(self, ax, page)

    # --- training what is missing ---

    def recall(self, archive: Archive) -> Iterator[Place]:
        """Take over what was kept on disk, without training."""
        for place, recipe in self.recipes.items():
            if place not in self.cells and (run := archive.get(recipe)):
                self.cells[place] = Cell(recipe, run)
                yield place

    def explore(
        self, *, archive: Archive | None = None, jobs: int = 1, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Place]:
        """Train what is missing, cell by cell; each is kept on disk as it is finished, and its place is given out.

        `stop` is asked at every step. What was finished is kept, and the next exploration goes on from there.
        """
        if problem := COUNT.problem(jobs):
            raise RecipeError(f"jobs: {problem}")
        archive = archive or Archive()
        yield from self.recall(archive)
        missing = {place: recipe for place, recipe in self.recipes.items() if place not in self.cells}
        trained = self._together(missing, jobs) if jobs > 1 else self._one_by_one(missing, stop)
        for place, run in trained:
            if run.facts["stopped"] in ("on request", "interrupted"):
                return
            archive.put(missing[place], run)
            self.cells[place] = Cell(missing[place], run)
            yield place
            if stop():
                return

    def _one_by_one(self, missing: dict[Place, Recipe], stop) -> Iterator[tuple[Place, Run]]:
        for place, recipe in missing.items():
            yield place, train(recipe, each_step=lambda _: stop(), progress=False, errors="record")

    def _together(self, missing: dict[Place, Recipe], jobs: int) -> Iterator[tuple[Place, Run]]:
        work = (joblib.delayed(_trained)(place, recipe) for place, recipe in missing.items())
        return joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(work)


def _trained(place: Place, recipe: Recipe) -> tuple[Place, Run]:
    torch.set_num_threads(1)  # processes that each use all cores wait for one another
    return place, train(recipe, progress=False, errors="record")


def phase(recipe: Recipe = STANDARD, *, jobs: int = 1, folder=None, progress: bool = True, **axes) -> Phase:
    """Train a recipe over a grid: `phase(recipe, lr=(0.01, 0.1, 1), depth=(2, 5, 8))`, and a third axis if you like.

    Without axes, LR by depth. Runs that were finished are kept (see `labkit.archive`) and not trained again; Ctrl-C
    keeps what there is.
    """
    found = Phase(recipe, axes or dict(AXES))
    bar = tqdm(total=len(found.recipes), unit="run", leave=False, disable=None if progress else True)
    try:
        for _ in found.explore(archive=Archive(folder), jobs=jobs):
            bar.update()
    except KeyboardInterrupt:
        pass
    finally:
        bar.close()
    return found
