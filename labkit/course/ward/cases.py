"""Who may lie in the ward: failures on varied nets and seeds that were seen to fail, to be named and to be cured."""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import joblib

from labkit.diagnosis.evaluation import blind
from labkit.failures.mode import FailureMode
from labkit.failures import FAILURES
from labkit.training.rules import RecipeError
from labkit.course.poster.poster import HEADLINES
from labkit.failures.signs import LOOKS
from labkit.training.recipe import Recipe
from labkit.recording.run import written_whole
from labkit.diagnosis.study import Study, play

LIST = Path(__file__).with_name("cases.json")
NETS = {name: blind.NETS[name].changes for name in ("own", "wider", "narrower")}  # that every failure can have
SEEDS = (200, 201, 202)  # neither those that thresholds were set on nor those of the blind clinic
HEADLINE_EVERY = 3  # one of the five everybody should know in each group of three patients
LEFT_OUT = {
    "unregistered_layers": "it only shows by being told: no curve has the layers that the net does not know of",
    "warmup_missing": "its transformer trains three times as long as any other patient",
}


@dataclass(frozen=True, repr=False)
class Case:
    """A failure mode on one net with one seed. It does not say which when it is shown."""

    name: str
    net: str
    seed: int

    def __repr__(self) -> str:
        return "<sealed case>"

    @property
    def mode(self) -> FailureMode:
        return FAILURES[self.name]

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The healthy, the sick and the cured recipe, all on this net."""
        recipes = self.mode.recipes(seed=self.seed)
        return {role: recipe.but(**NETS[self.net](recipe)) for role, recipe in recipes.items()}

    @property
    def complaint(self) -> str:
        """What anybody sees in the curves."""
        return LOOKS[self.mode.looks]


def suits(mode: FailureMode) -> bool:
    """Can a student find this one from the instruments, in one process, and is something lost by it?"""
    alone = mode.sick.processes == 1
    return alone and not mode.raises and mode.looks != "nothing" and mode.harm > 0 and mode.name not in LEFT_OUT


def holds(played: Study) -> bool:
    """Does the failure keep its contract on this net: does it fail, is it named first, and does the cure cure?"""
    return played.fails and played.named and played.is_clean and played.is_cured


def played(case: Case) -> Study:
    """Train the three recipes of a case."""
    return play(case.mode, case.recipes, progress=False)


def listed() -> dict[str, list[Case]]:
    """The cases that were seen to hold, by mode."""
    found = json.loads(LIST.read_text(encoding="utf-8"))
    return {
        name: [Case(name, net, seed) for net, seeds in nets.items() for seed in seeds] for name, nets in found.items()
    }


def draw(seed: int, patients: int) -> list[Case]:
    """So many cases, no failure twice; the same seed draws the same ones, and fewer are the first of more."""
    cases = listed()
    if patients > len(cases):
        raise RecipeError(f"patients: the ward has {len(cases)} beds, got {patients}")
    chance = random.Random(f"labkit ward {seed}")  # a text seeds alike in every process and on every machine
    order = chance.sample(sorted(cases), len(cases))
    headlines = [name for name in order if name in HEADLINES]
    others = [name for name in order if name not in HEADLINES]
    chosen = []
    while headlines or others:
        group = headlines[:1] + others[: HEADLINE_EVERY - 1]
        headlines, others = headlines[1:], others[HEADLINE_EVERY - 1 :]
        chosen += chance.sample(group, len(group))
    return [chance.choice(cases[name]) for name in chosen][:patients]


def renew(seeds: Iterable[int] = SEEDS, jobs: int = 1, path: Path = LIST) -> int:
    """Play every failure that suits on every net with every seed, and write down those that hold; how many do."""
    names = [name for name, mode in FAILURES.items() if suits(mode)]
    cases = [Case(name, net, seed) for seed in seeds for net in NETS for name in names]
    kept = joblib.Parallel(n_jobs=jobs)(joblib.delayed(_holds_when_played)(case) for case in cases)
    return write([case for case, good in zip(cases, kept, strict=True) if good], path)


def _holds_when_played(case: Case) -> bool:
    return holds(played(case))


def write(cases: Iterable[Case], path: Path = LIST) -> int:
    """The list of cases that hold, as {mode: {net: [seeds]}}; how many there are."""
    cases, found = list(cases), {}
    for case in sorted(cases, key=lambda case: (case.name, list(NETS).index(case.net), case.seed)):
        found.setdefault(case.name, {}).setdefault(case.net, []).append(case.seed)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(nets)}" for name, nets in found.items())
    with written_whole(path) as stream:
        stream.write(f"{{\n{lines}\n}}\n".encode())
    return len(cases)
