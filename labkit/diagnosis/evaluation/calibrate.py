"""Count how often each name is correct: `python -m labkit.diagnosis.evaluation.calibrate --runs FOLDER`.

On the foreign programs of the development and the retired split, whose runs are trained and kept in the folder.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from labkit.diagnosis import calibration
from labkit.diagnosis.evaluation.foreign.clinic import DETAILED, Examined, bins, hold, unsure
from labkit.recording.files import written_whole


def counts(runs: Iterable[Examined]) -> dict[str, tuple[int, int]]:
    """(correct, given) of each name that came first in a run that counts; "unsure" is no name."""
    found: dict[str, tuple[int, int]] = {}
    for each in runs:
        if each.counts and each.noticed and not unsure(each):
            correct, given = found.get(each.said, (0, 0))
            found[each.said] = correct + bool(each.case.fault and each.rank == 1), given + 1
    return dict(sorted(found.items()))


def without_own_program(runs: Iterable[Examined]) -> list[tuple[float, bool]]:
    """(confidence, correct) of each first diagnosis; its confidence is counted on all programs but its own."""
    runs = list(runs)
    programs = {each.case.program for each in runs}
    everywhere, by_program = (
        counts(runs),
        {name: counts(r for r in runs if r.case.program == name) for name in programs},
    )
    found = []
    for each in runs:
        if each.counts and each.noticed and not unsure(each):
            own = by_program[each.case.program].get(each.said, (0, 0))
            others = (total - here for total, here in zip(everywhere[each.said], own, strict=True))
            found.append((calibration.shrunk(*others), bool(each.case.fault and each.rank == 1)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="count how often each name of the diagnosis is correct")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="store trained runs here, and reuse those there")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    options = parser.parse_args()
    runs = [each for split in DETAILED for each in hold(split, jobs=options.jobs, folder=options.runs).all]
    found = counts(runs)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    with written_whole(calibration.PAGE) as stream:
        stream.write(f"{{\n{lines}\n}}\n".encode())
    correct, given = (sum(column) for column in zip(*found.values(), strict=True))
    print(f"{correct} of {given} first diagnoses are correct")
    for each in bins(without_own_program(runs)):
        print(f"confidence {each.mean:.2f} from other programs alone: {each.correct} of {each.given} correct")


if __name__ == "__main__":
    main()
