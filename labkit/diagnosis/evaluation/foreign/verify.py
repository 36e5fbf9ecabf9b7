"""Which faults really hurt which programs: `python -m labkit.diagnosis.evaluation.foreign.verify` regenerates the list.

With `--programs A,B` or `--faults A,B` only these are verified, and all other cases in the list stay as they are.
A case counts only if the base program learns and the fault hurts on all seeds. The diagnosis is not asked here.
"""

import argparse
import functools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.diagnosis.evaluation.foreign.operators import DoesNotApply
from labkit.diagnosis.evaluation.foreign.registry import FAULTS, PROGRAMS, SPLITS
from labkit.diagnosis.evaluation.foreign.setup import unwatched
from labkit.errors import near
from labkit.recording.files import written_whole
from labkit.training.loop import few_threads
from labkit.training.parallel import spread

PAGE = Path(__file__).with_name("verified.json")
SEEDS = (0, 1, 2)
# A fault hurts if it costs at least this share of the healthy program's score on the same seed. The score is 0 for the
# best constant prediction and 1 for perfect ones; between seeds the healthy programs differ by 2 % to 15 % of theirs.
MARGIN = 0.2
# Of backward() without a graph, and of a torch distribution with NaN. Any other error is a bug of the operator.
ERRORS = ("does not require grad", "found invalid values")


@dataclass(frozen=True)
class Case:
    """A fault in a program, with the scores that were measured; None for a score that is not finite or an error."""

    program: str
    fault: str
    scores: tuple[float | None, ...]


def score_of(name: str, fault: str | None, seed: int) -> float:
    """The score at the end of training; NaN where the fault ends in one of the errors that it should end in."""
    with few_threads():
        try:
            return PROGRAMS[name](unwatched, seed, FAULTS[fault] if fault else None)
        except (RuntimeError, ValueError) as error:
            if not any(words in str(error) for words in ERRORS):
                raise
            return math.nan


def hurts(score: float, healthy: float) -> bool:
    """Is it clearly worse than the healthy program on the same seed, or not finite?"""
    return not math.isfinite(score) or score <= healthy * (1 - MARGIN)


def applies(name: str, fault: str) -> bool:
    with torch.random.fork_rng(devices=[]):
        setup = PROGRAMS[name].prepared(0)
        try:
            FAULTS[fault](setup)
        except DoesNotApply:
            return False
    return True


def verified_for(
    name: str, faults: Sequence[str] = tuple(FAULTS), healthy: Sequence[float] | None = None
) -> tuple[Sequence[float], list[Case]]:
    """The healthy scores of a program, measured if they are not known, and which of these faults hurt on all seeds."""
    healthy = healthy or [score_of(name, None, seed) for seed in SEEDS]
    cases = []
    if not all(score >= PROGRAMS[name].enough for score in healthy):
        return healthy, []
    for fault in faults:
        if not applies(name, fault):
            continue
        scores: list[float] = []
        for seed, well in zip(SEEDS, healthy, strict=True):
            scores.append(score_of(name, fault, seed))
            if not hurts(scores[-1], well):
                break
        else:
            cases.append(Case(name, fault, tuple(round(each, 3) if math.isfinite(each) else None for each in scores)))
    return healthy, cases


def verify(
    names: Sequence[str] = tuple(PROGRAMS),
    faults: Sequence[str] = tuple(FAULTS),
    healthy: Mapping[str, Sequence[float]] | None = None,
    jobs: int = 1,
) -> dict:
    """Train these programs with each of these faults that applies; `healthy` are scores that are known already."""
    known = healthy or {}
    tasks = [(name, faults, known.get(name)) for name in names]
    found = dict(zip(names, spread(verified_for, tasks, jobs, unit="program"), strict=True))
    return {
        "seeds": SEEDS,
        "margin": MARGIN,
        "torch": torch.__version__,
        "healthy": {name: [round(score, 3) for score in healthy] for name, (healthy, _) in found.items()},
        "cases": {name: {each.fault: each.scores for each in cases} for name, (_, cases) in found.items()},
    }


def merged(stored: dict, found: dict, faults: Sequence[str]) -> dict:
    """The stored list, with the results for these faults in the programs that were verified; in the usual order."""
    healthy = stored["healthy"] | found["healthy"]
    cases = dict(stored["cases"])
    for name, new in found["cases"].items():
        kept = {fault: scores for fault, scores in cases.get(name, {}).items() if fault not in faults}
        cases[name] = {fault: scores for fault in FAULTS if (scores := (kept | new).get(fault))}
    in_order = {"healthy": healthy, "cases": cases}
    return found | {key: {name: each[name] for name in PROGRAMS if name in each} for key, each in in_order.items()}


@functools.cache
def _stored() -> dict:
    return json.loads(PAGE.read_text(encoding="utf-8"))


def healthy_score(name: str, seed: int) -> float:
    """The stored score of a program without a fault."""
    return _stored()["healthy"][name][SEEDS.index(seed)]


def verified(split: str | None = None) -> list[Case]:
    """The stored cases, of one split or of all."""
    stored = _stored()["cases"]
    names = SPLITS[split] if split else PROGRAMS
    return [Case(name, fault, tuple(scores)) for name in names for fault, scores in stored.get(name, {}).items()]


def as_json(found: dict) -> str:
    """One line per case, so that a change can be read."""

    def block(entries: dict, indent: str) -> str:
        lines = (f"{indent} {json.dumps(key)}: {value}" for key, value in entries.items())
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    def flat(scores: dict) -> dict:
        return {name: json.dumps(each) for name, each in scores.items()}

    plain = {name: json.dumps(value) for name, value in found.items() if name not in ("healthy", "cases")}
    cases = {name: block(flat(scores), "  ") for name, scores in found["cases"].items()}
    return block({**plain, "healthy": block(flat(found["healthy"]), " "), "cases": block(cases, " ")}, "") + "\n"


def names_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads a list of names on the command line."""

    def read(text: str) -> tuple[str, ...]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}. {near(unknown[0], known)}")
        return tuple(text.split(","))

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description="verify which faults hurt which foreign programs")
    parser.add_argument("--programs", type=names_of(PROGRAMS), default=tuple(PROGRAMS), metavar="A,B,...")
    parser.add_argument("--faults", type=names_of(FAULTS), default=tuple(FAULTS), metavar="A,B,...")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    options = parser.parse_args()
    # Where some faults are added to a program, they are compared with its stored scores, as the other faults were.
    known = _stored()["healthy"] if set(options.faults) < set(FAULTS) else None
    found = verify(options.programs, options.faults, known, options.jobs)
    with written_whole(PAGE) as stream:
        stream.write(as_json(merged(_stored(), found, options.faults)).encode())
    _stored.cache_clear()
    for split in SPLITS:
        print(f"{split}: {len(verified(split))} cases in {len(SPLITS[split])} programs")


if __name__ == "__main__":
    main()
