"""One failure mode played out: the healthy twin, the sick run and the cured one; and whether a recipe cures."""

from dataclasses import dataclass

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.failures.mode import DATASETS, FailureMode
from labkit.failures import FAILURES
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.training.loop import train


@dataclass(frozen=True)
class Study:
    """Three runs of one mode and what the diagnosis says of the sick one."""

    mode: FailureMode
    recipes: dict[str, Recipe]
    healthy: Run
    sick: Run
    cured: Run
    diagnoses: list[Diagnosis]

    def __repr__(self) -> str:
        found = {role: run.accuracy for role, run in self.runs.items()}
        accuracies = ", ".join(f"{role} {'?' if one is None else format(one, '.1%')}" for role, one in found.items())
        return f"<Study of {self.name}: {accuracies}; diagnosis: {[found.name for found in self.diagnoses]}>"

    def _repr_html_(self) -> str:
        from labkit.drawing.html import study_html  # only a notebook needs it

        return study_html(self)

    def __rich__(self) -> str:
        from labkit.diagnosis.report import study_in_words

        return study_in_words(self)

    @property
    def name(self) -> str:
        return self.mode.name

    @property
    def runs(self) -> dict[str, Run]:
        return {"healthy": self.healthy, "sick": self.sick, "cured": self.cured}

    @property
    def named(self) -> bool:
        """Did the diagnosis name this failure first?"""
        return bool(self.diagnoses) and self.diagnoses[0].name == self.name

    @property
    def harm(self) -> float:
        """Share of what the healthy twin learned above chance that the sick run did not."""
        chance = 1 / self.healthy.facts["classes"]
        return 1 - (self.sick.accuracy - chance) / (self.healthy.accuracy - chance)

    @property
    def fails(self) -> bool:
        """Does the sick run show its own signature, and does it lose what the mode says it loses?

        Where that is nothing, the accuracy is not asked: of a leak it is too good.
        """
        shows = self.name in {found.name for found in self.diagnoses}
        return shows and (self.mode.harm == 0 or self.harm >= self.mode.harm)

    @property
    def is_clean(self) -> bool:
        """Is the healthy run healthy: nothing to diagnose, run to its end, and learned?"""
        return not why_not_cured(self.mode, self.healthy, self.healthy, self.recipes["healthy"])

    @property
    def is_cured(self) -> bool:
        return not why_not_cured(self.mode, self.cured, self.healthy, self.recipes["cured"])


@dataclass(frozen=True)
class Verdict:
    """Whether a recipe cures; true or false in an `if`, and in words."""

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
    known: dict[Recipe, Run] | None = None,
    **options,
) -> Study:
    """Train the healthy, the sick and the cured recipe of a mode; `changes` are made to the sick one alone.

    Runs that are in `known` are not trained again; new ones are added to it, for the next study.
    Further options go to `train`, such as `progress=False`.
    """
    mode = FAILURES[name]
    recipes = mode.recipes(dataset=dataset, face=face, seed=seed)
    recipes["sick"] = recipes["sick"].but(**changes or {})
    return play(mode, recipes, known, **options)


def play(mode: FailureMode, recipes: dict[str, Recipe], known: dict[Recipe, Run] | None = None, **options) -> Study:
    """The study of these three recipes; see `study` for `known` and the options."""
    known = {} if known is None else known
    for recipe in recipes.values():
        if recipe not in known:  # where the cure is to do as the twin does, one run serves both
            run = train(recipe, errors="record", **options)
            if run.facts["stopped"] == "interrupted":
                raise KeyboardInterrupt
            known[recipe] = run
    runs = {role: known[recipe] for role, recipe in recipes.items()}
    return Study(mode=mode, recipes=recipes, diagnoses=diagnose(runs["sick"]), **runs)


def is_cured(name: str, recipe: Recipe, **options) -> Verdict:
    """Train a recipe and its mode's healthy twin: is it clean, has it learned, and is it as good?"""
    mode = FAILURES[name]
    dataset = recipe.summary()["data"]
    setting = mode.setting(dataset) if dataset in DATASETS else {}  # what this data set asks of every recipe
    twin = mode.healthy.but(**setting | {"data": recipe.data, "seed": recipe.seed})
    run = train(recipe, errors="record", **options)
    healthy = run if recipe == twin else train(twin, errors="record", **options)
    problem = why_not_cured(mode, run, healthy, recipe)
    if problem:
        return Verdict(False, problem, run)
    praise = f"cured: {run.accuracy:.1%}, the healthy twin has {healthy.accuracy:.1%}, and no failure shows"
    return Verdict(True, praise, run)


def why_not_cured(mode: FailureMode, run: Run, healthy: Run, recipe: Recipe) -> str:
    """What is still wrong with a run that should be as good as the healthy one; empty when nothing is."""
    if found := diagnose(run):
        return f"not yet: the run still shows {found[0].title.lower()}: {found[0].because}"
    if run.facts["stopped"]:
        error = run.facts.get("error")
        why = f"{error['kind']}: {error['message']}" if error else run.facts["stopped"]
        return f"not yet: the run ended after {len(run)} of {run.facts['planned_steps']} steps ({why})"
    if run.accuracy is None:
        return "not yet: the run was never validated; leave evaluate_every at None"
    enough = mode.enough(recipe.summary()["data"])
    if run.accuracy < enough:
        return f"not yet: validation accuracy {run.accuracy:.1%}, expected at least {enough:.0%}"
    if run.accuracy < healthy.accuracy - mode.close:
        return f"not yet: validation accuracy {run.accuracy:.1%}, the healthy twin has {healthy.accuracy:.1%}"
    return ""
