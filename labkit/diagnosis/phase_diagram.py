"""The phase diagram: a grid of recipes; every cell is a real run and its outcome."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from labkit.diagnosis.diagnose import Diagnosis, diagnose, evidence_of
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.failures.signs import looks
from labkit.recording.run import Run
from labkit.training.loop import UNFINISHED, train
from labkit.training.parallel import check_jobs, spread
from labkit.training.recipe import Recipe
from labkit.training.run_store import RunStore, on_disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A short run of a narrow net: long enough for a healthy one to learn (91 % at best), short enough to train many.
STANDARD = Recipe(steps=150, samples=5_000, width=64, init="he")
AXES = {"lr": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "depth": (2, 3, 5, 8, 12)}
MOST_AXES = 3  # columns, rows and pages
# On data that labkit does not know, a run counts as learned from this share of the way from guessing to perfect on.
USUAL = 4 / 9  # of ten classes: 50 % accuracy
AT_CHANCE = 1 / 30  # of that way; always predicting one class of ten scores 0.08 to 0.12
OUTCOMES = {  # with a description; from best to worst
    "learned": "it learned",
    "slow": "it is learning, but slowly",
    "never moved": "it is still at chance level",
    "dead": "its units output only zeros, and it is at chance level",
    "diverged": "the loss diverged, or is not a number",
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

    @property
    def score(self) -> float | None:
        """The run's own measure, such as its accuracy."""
        return self.run.score

    @functools.cached_property
    def outcome(self) -> str:
        return outcome(self.run, self.recipe.summary()["data"])

    @functools.cached_property
    def diagnoses(self) -> list[Diagnosis]:
        return diagnose(self.run)


def outcome(run: Run, dataset: str = "mnist") -> str:
    """The outcome of a run: one of OUTCOMES."""
    look, measure = looks(run), run.measure
    way = 1 - measure.harm(run.score, measure.perfect, run.facts["classes"])
    if look == "error":
        return "error"
    if look in ("not finite", "jumps"):
        return "diverged"
    if measure.reaches(run.score, measure.learned[dataset]) if dataset in measure.learned else way >= USUAL:
        return "learned"
    if any(evidence_of(mode, run) for mode in FAILURES.values() if mode.kills_units):
        return "dead"
    return "never moved" if way <= AT_CHANCE else "slow"


@dataclass
class Phase:
    """A recipe, the axes it is varied along, and the cells trained so far."""

    recipe: Recipe = STANDARD
    axes: dict[str, tuple] = field(default_factory=lambda: dict(AXES))
    cells: dict[Place, Cell] = field(default_factory=dict)
    recipes: dict[Place, Recipe] = field(init=False)

    def __post_init__(self) -> None:
        if not 2 <= len(self.axes) <= MOST_AXES:
            raise RecipeError(f"expected two or three axes, such as lr=(0.1, 1) and depth=(2, 5), got {len(self.axes)}")
        for name, values in self.axes.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise RecipeError(f"{name}: expected a list of values, got {values!r}")
        self.axes = {name: tuple(dict.fromkeys(values)) for name, values in self.axes.items()}
        self.recipes = {  # by place; an invalid value is refused here, before training
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
        """How many cells have each outcome, the best first."""
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

    def plot(self, ax: "Axes | None" = None, page: Any = None) -> "Axes":
        """The grid as coloured cells; of three axes, one page."""
        from labkit.diagnosis.phase_plots import phase_diagram

        return phase_diagram(self, ax, page)

    # --- training what is missing ---

    def recall(self, store: RunStore) -> Iterator[Place]:
        """Take the cells that are in the store, without training."""
        for place, recipe in self.recipes.items():
            if place not in self.cells and (run := store.get(recipe)):
                self.cells[place] = Cell(recipe, run)
                yield place

    def explore(
        self, *, store: RunStore | None = None, jobs: int = 1, stop: Callable[[], bool] = lambda: False
    ) -> Iterator[Place]:
        """Train the missing cells one by one; each is stored when it is finished, and its place is yielded.

        `stop` is called at every step. Finished cells are kept, and the next exploration continues from there. Without
        a store, runs are kept in the user's cache folder.
        """
        check_jobs(jobs)
        store = store or on_disk()
        yield from self.recall(store)
        missing = {place: recipe for place, recipe in self.recipes.items() if place not in self.cells}
        trained = self._together(missing, jobs, store) if jobs > 1 else self._one_by_one(missing, stop, store)
        for place, run in trained:
            if run.facts["stopped"] in UNFINISHED:
                return
            self.cells[place] = Cell(missing[place], run)
            yield place
            if stop():
                return

    def _one_by_one(
        self, missing: dict[Place, Recipe], stop: Callable[[], bool], store: RunStore
    ) -> Iterator[tuple[Place, Run]]:
        for place, recipe in missing.items():
            yield place, store.run_of(recipe, each_step=lambda _: stop(), progress=False)

    def _together(self, missing: dict[Place, Recipe], jobs: int, store: RunStore) -> Iterator[tuple[Place, Run]]:
        for place, run in spread(_trained, missing.items(), jobs, in_order=False):
            if run.facts["stopped"] not in UNFINISHED:
                store.put(missing[place], run)
            yield place, run


def _trained(place: Place, recipe: Recipe) -> tuple[Place, Run]:
    return place, train(recipe, progress=False, errors="record")


def phase(
    recipe: Recipe = STANDARD,
    *,
    jobs: int = 1,
    folder: str | os.PathLike | None = None,
    progress: bool = True,
    **axes: tuple[Any, ...],
) -> Phase:
    """Train a recipe over a grid: `phase(recipe, lr=(0.01, 0.1, 1), depth=(2, 5, 8))`; a third axis is possible.

    Without axes, learning rate by depth. Finished runs are kept on disk (`labkit.training.run_store`) and not trained
    again; Ctrl-C keeps the finished cells.
    """
    found = Phase(recipe, axes or dict(AXES))
    bar = tqdm(total=len(found.recipes), unit="run", leave=False, disable=None if progress else True)
    try:
        for _ in found.explore(store=on_disk(folder), jobs=jobs):
            bar.update()
    except KeyboardInterrupt:
        pass
    finally:
        bar.close()
    return found
