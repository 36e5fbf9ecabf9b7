"""Evaluate the diagnosis on foreign programs: every verified fault, and healthy variants of the same programs."""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.diagnosis.diagnose import UNSURE, Diagnosis, diagnose
from labkit.diagnosis.evaluation.blind import is_at
from labkit.diagnosis.evaluation.foreign import conditions
from labkit.diagnosis.evaluation.foreign.operators import Fault
from labkit.diagnosis.evaluation.foreign.registry import FAULTS, PROGRAMS, SPLITS, healthy_variants
from labkit.diagnosis.evaluation.foreign.setup import Settings, Setup
from labkit.diagnosis.evaluation.foreign.verify import SEEDS, healthy_score, hurts, verified
from labkit.diagnosis.watch import Watch, watch
from labkit.errors import RecipeError, near
from labkit.recording.files import written_whole
from labkit.recording.run import Run, RunError
from labkit.training.loop import few_threads
from labkit.training.parallel import check_jobs, spread

PACKAGE = Path(__file__).parents[3]
DETAILED = ("development", "retired")  # the splits whose misses are shown; of the held-out one only counts are


@dataclass(frozen=True)
class Case:
    """What is trained: a program with a fault, or without one and with these settings or under harder conditions."""

    program: str
    seed: int
    fault: str | None = None
    settings: Settings | None = None
    conditions: tuple[str, ...] = ()

    def __str__(self) -> str:
        settings = ", ".join(map(str, asdict(self.settings).values())) if self.settings else "healthy"
        what = self.fault or ", ".join(self.conditions) or settings
        return f"{self.program}, {what}, seed {self.seed}"


@dataclass(frozen=True)
class Examined:
    """One run of a foreign program, and what the diagnosis said about it."""

    case: Case
    counts: bool  # a fault that hurts, or a healthy run that learned
    verdict: tuple[tuple[str, float], ...] = ()  # names and confidences, in order
    place: str = ""  # of the first diagnosis
    wanted: tuple[str, ...] = ()  # correct places; empty where the fault has none
    switched_off: tuple[str, ...] = ()  # instruments that failed
    crash: str = ""  # an error that labkit raised into the loop, or in the diagnosis

    @property
    def fault(self) -> Fault:
        assert self.case.fault
        return FAULTS[self.case.fault]

    @property
    def task(self) -> str:
        return PROGRAMS[self.case.program].task

    @property
    def noticed(self) -> bool:
        return bool(self.verdict)

    @property
    def said(self) -> str:
        return self.verdict[0][0] if self.verdict else "nothing"

    @property
    def rank(self) -> int | None:
        """Position of the first correct name, from 1; None if there is none."""
        places = [at for at, (name, _) in enumerate(self.verdict, start=1) if name in self.fault.accepted]
        return places[0] if places else None

    @property
    def place_right(self) -> bool | None:
        """None where the fault is in no particular place. With a wrong name the place is wrong too."""
        if not self.wanted:
            return None
        return self.rank == 1 and any(is_at(self.place, each) for each in self.wanted)


# --- one run ------------------------------------------------------------------------------------------


class Recording:
    """Stands for `watch`: hands the program a real one, and keeps it; remembers whose error it was."""

    def __init__(self) -> None:
        self.record: Watch | None = None

    def __call__(self, model: Any, optimizer: Any, **options: Any) -> Watch:
        self.record = watch(model, optimizer, **options)
        return self.record


def trained(case: Case) -> tuple[Run, float, tuple[str, ...], str]:
    """(the run, the score, the places of the fault, an error of labkit's own)."""
    recording, places, crash, score = Recording(), [], "", math.nan

    def changed(setup: Setup) -> None:
        conditions.change(case.conditions, setup)
        if case.fault:
            places.extend(FAULTS[case.fault](setup))

    watching = conditions.watching_under(case.conditions, recording)

    # What labkit says about instruments that it switches off is counted below, and need not be printed.
    with few_threads(), contextlib.redirect_stderr(Silent()):
        try:
            score = PROGRAMS[case.program](watching, case.seed, changed, case.settings)
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, KeyError) as error:
            crash = f"{type(error).__name__}: {error}" if raised_by_labkit(error) else ""
    assert recording.record, f"{case}: the program never called watch"
    return recording.record.run, score, tuple(places), crash


class Silent:
    """A stream that forgets what is written."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def raised_by_labkit(error: BaseException) -> bool:
    """Was the innermost function of labkit's one of the instruments? Then the program is not to blame."""
    files = [Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [each for each in files if each.is_relative_to(PACKAGE)]
    return bool(own) and not own[-1].is_relative_to(Path(__file__).parent)


def examine(case: Case, folder: Path | None = None) -> Examined:
    """Train the case under `watch`, or take the run from the folder, and diagnose it."""
    stored = folder / f"foreign-{key_of(case)}" if folder else None
    found = read(stored) if stored else None
    run, score, places, crash = found or trained(case)
    if stored and not found:
        write(stored, run, score, places, crash)
    try:
        verdict = diagnose(run, strict=False)
    except Exception as error:  # counted as what it is: the diagnosis has failed
        verdict, crash = [], crash or f"diagnose: {type(error).__name__}: {error}"
    return examined(case, score, verdict, places, crash, run.facts.get("switched_off", ()))


def examined(
    case: Case, score: float, verdict: Sequence[Diagnosis], places: tuple[str, ...], crash: str, off: Iterable[dict]
) -> Examined:
    return Examined(
        case,
        counts=hurts(score, healthy_score(case.program, case.seed))
        if case.fault
        else score >= (conditions.ENOUGH if case.conditions else PROGRAMS[case.program].enough),
        verdict=tuple((each.name, round(each.confidence, 3)) for each in verdict),
        place=verdict[0].place if verdict else "",
        wanted=places,
        switched_off=tuple(each["instrument"] for each in off),
        crash=crash,
    )


# --- stored runs --------------------------------------------------------------------------------------


def key_of(case: Case) -> str:
    """Of the case and of the code that trains and records it: a stored run of other code is not used."""
    return hashlib.sha256(f"{case!r} {_code()} {torch.__version__}".encode()).hexdigest()[:24]


@functools.cache
def _code() -> str:
    rooms = (Path(__file__).parent, PACKAGE / "recording")
    files = [*(each for room in rooms for each in room.rglob("*.py")), PACKAGE / "diagnosis" / "watch.py"]
    return hashlib.sha256(b"".join(each.read_bytes() for each in sorted(files))).hexdigest()


def write(path: Path, run: Run, score: float, places: tuple[str, ...], crash: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    run.save(path.with_suffix(".npz"))
    with written_whole(path.with_suffix(".json")) as stream:
        stream.write(json.dumps([score if math.isfinite(score) else None, places, crash]).encode())


def read(path: Path) -> tuple[Run, float, tuple[str, ...], str] | None:
    try:
        score, places, crash = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Run.load(path.with_suffix(".npz")), math.nan if score is None else score, tuple(places), crash
    except (FileNotFoundError, RunError, ValueError):
        return None


# --- all of them --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Foreign:
    """The results on one split."""

    sick: list[Examined]
    healthy: list[Examined]
    split: str
    seeds: int = 1
    skipped: int = 0  # cases whose runs were not in the folder

    @property
    def ill(self) -> list[Examined]:
        """The runs that failed, as they were verified to do; on another machine one may not."""
        return [each for each in self.sick if each.counts]

    @property
    def counted(self) -> list[Examined]:
        """The healthy runs that did learn."""
        return [each for each in self.healthy if each.counts]

    @property
    def false_alarms(self) -> list[Examined]:
        return [each for each in self.counted if each.noticed]

    @property
    def all(self) -> list[Examined]:
        return [*self.sick, *self.healthy]


def share(runs: Sequence[Examined], true: Callable[[Examined], bool | None]) -> tuple[int, int]:
    """(how often it is true, out of how many where it is not None)."""
    answers = [answer for each in runs if (answer := true(each)) is not None]
    return sum(answers), len(answers)


def noticed(each: Examined) -> bool:
    return each.noticed


def unsure(each: Examined) -> bool:
    return each.said == UNSURE


def named_first(each: Examined) -> bool:
    return each.rank == 1


def named_among_two(each: Examined) -> bool:
    return each.rank in (1, 2)


@dataclass(frozen=True)
class Bin:
    """First diagnoses with a confidence in this range: how many, how many correct, and their mean confidence."""

    low: float
    high: float
    given: int
    correct: int
    mean: float


EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.001)


def calibration(found: Foreign) -> list[Bin]:
    """Confidence against correctness. On a healthy run any diagnosis is wrong; "unsure" is left out."""
    given = [(each.verdict[0][1], each.rank == 1) for each in found.ill if each.noticed and not unsure(each)]
    given += [(each.verdict[0][1], False) for each in found.false_alarms if not unsure(each)]
    return bins(given)


def bins(given: Sequence[tuple[float, bool]]) -> list[Bin]:
    """Of (confidence, correct), those ranges that have any."""
    found = []
    for low, high in itertools.pairwise(EDGES):
        inside = [(confidence, right) for confidence, right in given if low <= confidence < high]
        if inside:
            mean = sum(confidence for confidence, _ in inside) / len(inside)
            found.append(Bin(low, min(high, 1.0), len(inside), sum(right for _, right in inside), mean))
    return found


def hold(
    split: str = "held-out",
    *,
    programs: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
    seeds: int = 1,
    healthy: int = 200,
    harder: int = 0,
    jobs: int = 1,
    folder: Path | None = None,
    kept_only: bool = False,
) -> Foreign:
    """Diagnose every verified case of a split on the first `seeds` verified seeds, and `healthy` healthy runs.

    The programs themselves, without a fault, are healthy runs too, and come on top; and so do `harder` healthy runs
    under harder conditions, such as noise.
    """
    check_arguments(
        split, programs, healthy=healthy, jobs=jobs, seeds=seeds, harder=harder, folder=folder, kept_only=kept_only
    )
    names = [name for name in SPLITS[split] if programs is None or name in programs]
    pairs = [each for each in verified(split) if each.program in names]
    if modes is not None:
        pairs = [each for each in pairs if set(FAULTS[each.fault].accepted) & set(modes)]
    ill = [Case(each.program, seed, each.fault) for seed in SEEDS[:seeds] for each in pairs]
    well = [Case(name, seed) for seed in SEEDS[:seeds] for name in names]
    drawn = healthy_variants(split, healthy)
    well += [Case(name, seed, None, settings) for name, seed, settings in drawn if name in names]
    well += [Case(name, seed, conditions=chosen) for name, seed, chosen in conditions.draw(names, harder)]
    asked = len(ill) + len(well)
    if kept_only:
        assert folder
        ill, well = ([each for each in cases if read(folder / f"foreign-{key_of(each)}")] for cases in (ill, well))
    results = list(spread(examine, [(case, folder) for case in (*ill, *well)], jobs, unit="run"))
    return Foreign(results[: len(ill)], results[len(ill) :], split, seeds, skipped=asked - len(results))


def check_arguments(
    split: str,
    programs: Sequence[str] | None,
    *,
    healthy: int,
    jobs: int,
    seeds: int = 1,
    harder: int = 0,
    folder: Path | None = None,
    kept_only: bool = False,
) -> None:
    """Refuse a bad value before anything is trained."""
    check_jobs(jobs)
    if split not in SPLITS:
        raise RecipeError(f"split: expected one of {', '.join(SPLITS)} for foreign programs, got {split!r}")
    for name in programs or ():
        if name not in SPLITS[split]:
            problem = f"programs: {name!r} is not in the {split} split. {near(name, SPLITS[split])}"
            raise RecipeError(problem)
    if not 1 <= seeds <= len(SEEDS):
        raise RecipeError(f"seeds: expected 1 to {len(SEEDS)}, on which the faults were verified, got {seeds}")
    for name, count in {"healthy": healthy, "harder": harder}.items():
        if count < 0:
            raise RecipeError(f"{name}: expected a number of runs, at least 0, got {count}")
    if kept_only and folder is None:
        raise RecipeError("--kept evaluates the runs in a folder: name it with --runs FOLDER")
    if kept_only and folder and not folder.is_dir():
        raise RecipeError(f"--kept: there is no folder {folder}; without --kept the runs are trained and kept there")
    if split not in DETAILED and programs:
        print("labkit: results of single held-out programs invite tuning; evaluate all of them", file=sys.stderr)
