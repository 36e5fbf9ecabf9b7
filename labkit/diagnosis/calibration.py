"""How far a verdict can be trusted: how often each name was correct on programs that are no recipes of the lab."""

import functools
import json
from pathlib import Path

# [correct, given] of each name as the first diagnosis on the development and the retired split of the foreign programs;
# a diagnosis of a healthy run is wrong. Counted before the six newest modes, whose confidence is their own.
# `python -m labkit.diagnosis.evaluation.calibrate` counts again.
PAGE = Path(__file__).with_name("calibration.json")
# The signatures were tuned on those programs, so each count is pulled towards PRIOR, as if WEIGHT more verdicts had
# been given. Both were chosen so that the mean confidence is what was correct on the retired programs when they were
# seen for the first time: 114 of 126, 90 %.
PRIOR, WEIGHT = 0.6, 6


def confidence(name: str, said: float) -> float:
    """Of a verdict with this name; what its signature says itself where that was never measured."""
    if name not in measured():
        return said
    correct, given = measured()[name]
    return (correct + PRIOR * WEIGHT) / (given + WEIGHT)


@functools.cache
def measured() -> dict[str, tuple[int, int]]:
    """(correct, given) by name."""
    return {name: (correct, given) for name, (correct, given) in json.loads(PAGE.read_text(encoding="utf-8")).items()}
