"""One failure mode trained three times: the healthy twin, the sick run and the cured run; and does a recipe cure it?"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import DATASETS, FailureMode
from labkit.recording.run import Run
from labkit.training import run_store
from labkit.training.parallel import check_jobs, spread
from labkit.training.recipe import Recipe
from labkit.training.run_store import Memory, RunStore


@dataclass(frozen=True)
class Study:
    """Three runs of one mode, and the diagnosis of the sick one."""

    mode: FailureMode
    recipes: dict[str, Recipe]
    healthy: Run
    sick: Run
    cured: Run
    diagnoses: list[Diagnosis]

    def __repr__(self) -> str:
        scores = ", ".join(f"{role} {run.measure.text(run.score)}" for role, run in self.runs.items())
        return f"<Study of {self.name}: {scores}; diagnosis: {[found.name for found in self.diagnoses]}>"

    def _repr_html_(self) -> str:
        import html  # only a notebook needs these

        from labkit.diagnosis.report import study_in_words
        from labkit.drawing.html import figure_html
        from labkit.drawing.plots import study_picture

        words = study_in_words(self)
        return f"{figure_html(study_picture(self), words)}<pre>{html.escape(words)}</pre>"

    def __rich__(self) -> str:
        from labkit.diagnosis.report import study_in_words

        return study_in_words(self)

    @property
    def name(self) -> str:
        """The name of the failure mode."""
        return self.mode.name

    @property
    def runs(self) -> dict[str, Run]:
        """The three runs by their roles: healthy, sick, cured."""
        return {"healthy": self.healthy, "sick": self.sick, "cured": self.cured}

    @functools.cached_property
    def verdicts(self) -> dict[str, list[Diagnosis]]:
        """What the diagnosis says of each of the three runs; every run is diagnosed once."""
        healthy = diagnose(self.healthy)
        cured = healthy if self.cured is self.healthy else diagnose(self.cured)
        return {"healthy": healthy, "sick": self.diagnoses, "cured": cured}

    @property
    def named(self) -> bool:
        """Did the diagnosis name this failure first?"""
        return bool(self.diagnoses) and self.diagnoses[0].name == self.name

    @property
    def harm(self) -> float:
        """What the sick run lost of the healthy twin's score above chance, as a share."""
        return self.healthy.measure.harm(self.sick.score, self.healthy.score, self.healthy.facts["classes"])

    @property
    def fails(self) -> bool:
        """Does the sick run show its own signature, and lose as much of its score as the mode says?

        Where the mode says 0, the score does not count: with a leak it is too good.
        """
        shows = self.name in {found.name for found in self.diagnoses}
        return shows and (self.mode.harm == 0 or self.harm >= self.mode.harm)

    @property
    def is_clean(self) -> bool:
        """Is the healthy run healthy: no failure diagnosed, trained to its last step, and learned?"""
        return not self._why_not_cured("healthy")

    @property
    def is_cured(self) -> bool:
        """Does the cured run show no failure, and is it as good as the healthy one?"""
        return not self._why_not_cured("cured")

    def _why_not_cured(self, role: str) -> str:
        run, recipe, found = self.runs[role], self.recipes[role], self.verdicts[role]
        return why_not_cured(self.mode, run, self.healthy, recipe, found)


@dataclass(frozen=True)
class Verdict:
    """Whether a recipe cures: true or false in an `if`, with the reason in words."""

    cured: bool
    why: str
    run: Run

    def __bool__(self) -> bool:
        return self.cured


def study(
    name: str,
    seed: int = 0,
    dataset: str = "mnist",
    *,
    face: str | None = None,
    changes: dict | None = None,
    store: RunStore | None = None,
    **options: Any,
) -> Study:
    """Train the healthy, the sick and the cured recipe of a mode; `changes` apply only to the sick one.

    Runs that are in `store` are not trained again; new ones are added to it, for the next study.
    Further options go to `train`, such as `progress=False`.
    """
    mode = FAILURES[name]
    recipes = mode.recipes(dataset=dataset, face=face, seed=seed)
    recipes["sick"] = recipes["sick"].but(**changes or {})
    return play(mode, recipes, store, **options)


def run_studies(names: Sequence[str], *, seed: int, dataset: str, jobs: int = 1) -> list[Study]:
    """One study per name, in order, in `jobs` processes.

    A recipe that several studies share, such as the healthy twin of many, is trained once in each process.
    """
    check_jobs(jobs)
    for name in names:
        FAILURES[name]  # an unknown name is an error before the first is trained
    return list(spread(_one_study, [(name, seed, dataset) for name in names], jobs, unit="study"))


def _one_study(name: str, seed: int, dataset: str) -> Study:
    return study(name, seed, dataset, store=run_store.in_memory, progress=False)


def play(mode: FailureMode, recipes: dict[str, Recipe], store: RunStore | None = None, **options: Any) -> Study:
    """The study of these three recipes; see `study` for the store and the options."""
    for role, recipe in recipes.items():
        if recipe.evaluate_every == 0:
            raise RecipeError(
                f"evaluate_every: a study compares validations, and with 0 the {role} run has none; "
                "expected a number of steps above 0, or None"
            )
    store = store or RunStore(memory=Memory())
    runs: dict[Recipe, Run] = {}
    for recipe in recipes.values():
        if recipe not in runs:  # where the cure is the healthy recipe itself, one run serves both
            runs[recipe] = finished(store, recipe, **options)
    played = {role: runs[recipe] for role, recipe in recipes.items()}
    return Study(mode=mode, recipes=recipes, diagnoses=diagnose(played["sick"]), **played)


def finished(store: RunStore, recipe: Recipe, **options: Any) -> Run:
    """The run of a recipe from the store, or trained now; Ctrl-C while it trains is passed on."""
    run = store.run_of(recipe, **options)
    if run.facts["stopped"] == "interrupted":
        raise KeyboardInterrupt
    return run


def is_cured(name: str, recipe: Recipe, *, store: RunStore | None = None, **options: Any) -> Verdict:
    """Train a recipe and its mode's healthy twin: does it show no failure, and is it as good?

    The store and the options are those of `study`.
    """
    mode, store = FAILURES[name], store or RunStore(memory=Memory())
    dataset = recipe.summary()["data"]
    setting = (
        mode.setting(dataset) if dataset in DATASETS else {}
    )  # the settings that every recipe has on this data set
    twin = mode.healthy.but(**setting | {"data": recipe.data, "seed": recipe.seed})
    run = store.run_of(recipe, **options)
    healthy = run if recipe == twin else store.run_of(twin, **options)
    problem = why_not_cured(mode, run, healthy, recipe)
    if problem:
        return Verdict(False, problem, run)
    text = run.measure.text
    praise = f"cured: {text(run.score)}, the healthy twin has {text(healthy.score)}, and no failure shows"
    return Verdict(True, praise, run)


def why_not_cured(
    mode: FailureMode, run: Run, healthy: Run, recipe: Recipe, found: list[Diagnosis] | None = None
) -> str:
    """What is still wrong with a run that should be as good as the healthy one; empty when nothing is.

    `found` is its diagnosis, where it is known already.
    """
    found = diagnose(run) if found is None else found
    if found:
        return f"not yet: the run still shows {found[0].title.lower()}: {found[0].because}"
    if run.facts["stopped"]:
        error = run.facts.get("error")
        why = f"{error['kind']}: {error['message']}" if error else run.facts["stopped"]
        return f"not yet: the run ended after {len(run)} of {run.facts['planned_steps']} steps ({why})"
    measure, score = run.measure, run.score
    if score is None:
        return "not yet: the run was never validated; leave evaluate_every at None"
    enough = mode.enough(recipe.summary()["data"])
    if not measure.reaches(score, enough):
        return f"not yet: {measure.words} {measure.text(score)}, expected {measure.bound} {measure.brief(enough)}"
    if healthy.score is not None and not measure.reaches(score, healthy.score, mode.close):
        return f"not yet: {measure.words} {measure.text(score)}, the healthy twin has {measure.text(healthy.score)}"
    return ""
