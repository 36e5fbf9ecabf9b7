"""The verified cases to draw from: failures on varied nets and seeds that fail, are diagnosed and are cured."""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.diagnosis.evaluation import nets
from labkit.diagnosis.study import Study, play
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES, HEADLINES
from labkit.failures.mode import FailureMode
from labkit.failures.signs import LOOKS
from labkit.recording.files import written_whole
from labkit.training.parallel import spread
from labkit.training.recipe import Recipe

LIST = Path(__file__).with_name("cases.json")
NETS = {name: nets.NETS[name].changes for name in ("own", "wider", "narrower")}  # that work for every failure
SEEDS = (200, 201, 202)  # used neither to set thresholds nor in the blind evaluation
HEADLINE_EVERY = 3  # one headline failure in each group of three patients


@dataclass(frozen=True, repr=False)
class Case:
    """A failure mode on one net with one seed. Its repr does not reveal which."""

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
        """The healthy, sick and cured recipes, all on this net."""
        recipes = self.mode.recipes(seed=self.seed)
        return {role: recipe.but(**NETS[self.net](recipe)) for role, recipe in recipes.items()}

    @property
    def complaint(self) -> str:
        """What the loss curves look like."""
        return LOOKS[self.mode.looks]


def is_solvable(mode: FailureMode) -> bool:
    """Can a student find this failure from the instruments, in one process, and does it cost accuracy?"""
    alone = mode.sick.processes == 1
    return alone and not mode.raises and mode.looks != "nothing" and mode.harm > 0 and not mode.not_in_ward


def is_verified(played: Study) -> bool:
    """Does the failure pass its contract on this net: does it fail, is it diagnosed first, and does the cure work?"""
    return played.fails and played.named and played.is_clean and played.is_cured


def play_case(case: Case) -> Study:
    """Train the three recipes of a case."""
    return play(case.mode, case.recipes, progress=False)


def verified_cases() -> dict[str, list[Case]]:
    """The stored list of verified cases, by mode."""
    found = json.loads(LIST.read_text(encoding="utf-8"))
    return {
        name: [Case(name, net, seed) for net, seeds in nets.items() for seed in seeds] for name, nets in found.items()
    }


def draw(seed: int, patients: int) -> list[Case]:
    """`patients` cases, no failure twice: the same for the same seed, and a smaller draw is a prefix of a larger."""
    cases = verified_cases()
    if patients > len(cases):
        raise RecipeError(f"patients: expected at most {len(cases)}, one per failure, got {patients}")
    chance = random.Random(f"labkit ward {seed}")  # a string seeds the same in every process and on every machine
    order = chance.sample(sorted(cases), len(cases))
    headlines = [name for name in order if name in HEADLINES]
    others = [name for name in order if name not in HEADLINES]
    chosen = []
    while headlines or others:
        group = headlines[:1] + others[: HEADLINE_EVERY - 1]
        headlines, others = headlines[1:], others[HEADLINE_EVERY - 1 :]
        chosen += chance.sample(group, len(group))
    return [chance.choice(cases[name]) for name in chosen][:patients]


def regenerate(seeds: Iterable[int] = SEEDS, jobs: int = 1, path: Path = LIST) -> int:
    """Regenerate the list of verified cases: train all failures on all nets and seeds; returns how many pass."""
    names = [name for name, mode in FAILURES.items() if is_solvable(mode)]
    cases = [Case(name, net, seed) for seed in seeds for net in NETS for name in names]
    kept = spread(_passes, [(case,) for case in cases], jobs, unit="case")
    return write([case for case, passed in zip(cases, kept, strict=True) if passed], path)


def _passes(case: Case) -> bool:
    return is_verified(play_case(case))


def write(cases: Iterable[Case], path: Path = LIST) -> int:
    """Write the list of verified cases as {mode: {net: [seeds]}}; returns how many there are."""
    cases, found = list(cases), {}
    for case in sorted(cases, key=lambda case: (case.name, list(NETS).index(case.net), case.seed)):
        found.setdefault(case.name, {}).setdefault(case.net, []).append(case.seed)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(nets)}" for name, nets in found.items())
    with written_whole(path) as stream:
        stream.write(f"{{\n{lines}\n}}\n".encode())
    return len(cases)
