"""Two tables from real runs: failures whose losses look alike, and how early each instrument shows a failure."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from labkit.diagnosis.study import Study
from labkit.recording.run import Run
from labkit.recording.summaries import gradient_ratio, total_norm, typical, worst_dead
from labkit.recording.traces import RANGES, Trace

# Two losses look alike when their smoothed curves differ by at most 5 % in the median and 25 % at any step.
ALIKE_TYPICAL, ALIKE_WORST = math.log(1.05), math.log(1.25)
SHORTEST = 50  # steps; over fewer common steps most losses look alike
RISE, BEHIND, TURN = (
    3.0,
    2.0,
    1.5,
)  # alarms of the loss: times its first value; the healthy twin's; its own lowest


@dataclass(frozen=True)
class LookAlike:
    """Two failures that the loss cannot tell apart, and the instrument that can."""

    one: str
    other: str
    difference: float  # median relative difference of the smoothed losses: 0.02 is 2 %
    instrument: str  # empty if none can
    readings: tuple[float, ...]


@dataclass(frozen=True)
class LeadTime:
    """The step at which a failure shows in the loss of the sick run, and in each instrument that detects it."""

    name: str
    loss: int | None
    instruments: dict[str, int]

    def lead(self, instrument: str) -> int | None:
        """Steps by which an instrument is ahead of the loss; None if either never raises an alarm."""
        seen = self.instruments.get(instrument)
        return None if seen is None or self.loss is None else self.loss - seen


def look_alikes(studies: list[Study]) -> list[LookAlike]:
    """Every pair of sick runs whose training losses cannot be told apart."""
    found = []
    for one, other in itertools.combinations(studies, 2):
        difference = loss_difference(one.sick, other.sick)
        if difference is not None:
            found.append(_separate(one, other, difference))
    return found


def loss_difference(one: Run, other: Run) -> float | None:
    """The median relative difference of two smoothed losses, or None if they can be told apart."""
    steps = min(len(one), len(other))
    if steps < SHORTEST:
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(np.log(one.smoothed()[:steps]) - np.log(other.smoothed()[:steps]))
    if not np.isfinite(apart).all() or np.median(apart) > ALIKE_TYPICAL or apart.max() > ALIKE_WORST:
        return None
    return float(np.expm1(np.median(apart)))


def _separate(one: Study, other: Study, difference: float) -> LookAlike:
    """The instrument whose readings differ most, in powers of ten, with at least one outside its range."""

    def distance(each: Trace) -> float:
        first, second = readings = reading(one.sick, each.name), reading(other.sick, each.name)
        if not all(map(math.isfinite, readings)) or all(each.low <= value <= each.high for value in readings):
            return 0.0
        floor = 1e-9  # exact zeros, as in dead layers, count as 1e-9
        return abs(math.log10(max(first, floor)) - math.log10(max(second, floor)))

    best = max((each for each in RANGES if each.name in SERIES), key=distance)
    if not distance(best):
        return LookAlike(one.name, other.name, difference, "", ())
    readings = reading(one.sick, best.name), reading(other.sick, best.name)
    return LookAlike(one.name, other.name, difference, best.words, readings)


def lead_times(studies: list[Study]) -> list[LeadTime]:
    """Per study: first alarm of the loss, and of each instrument that leaves its range in the sick run only."""
    result = []
    for each in studies:
        seen = {}
        for one in RANGES:
            if one.name in SERIES and first_outside(each.healthy, one) is None:
                step = first_outside(each.sick, one)
                seen |= {one.words: step} if step is not None else {}
        result.append(LeadTime(each.name, loss_alarm(each), seen))
    return result


def loss_alarm(each: Study) -> int | None:
    """The first step at which the loss, compared with the healthy twin's, shows the failure."""
    sick, twin = each.sick, each.healthy.smoothed()
    smooth = sick.smoothed()
    steps = min(len(smooth), len(twin))
    with np.errstate(all="ignore"):
        risen = ~np.isfinite(sick["loss"]) | (sick["loss"] > RISE * each.healthy["loss"][0])
        behind = smooth[:steps] > BEHIND * twin[:steps]
        turned = sick["val_loss"] > TURN * np.fmin.accumulate(sick["val_loss"])
    alarms = [sick["step"][: len(flags)][flags] for flags in (risen, behind)] + [sick["val_step"][turned]]
    first = [int(steps[0]) for steps in alarms if len(steps)]
    return min(first) if first else None


# --- one series per instrument --------------------------------------------------------------------


SERIES = {  # trace -> the values to compare with its range, per step or per evaluation
    "grad_norm_total": lambda run: run["grad_norm_total"],
    "grad_ratio": gradient_ratio,
    "update_ratio": lambda run: run["update_ratio"].max(axis=1),
    "weight_norm": lambda run: total_norm(run["weight_norm"]),
    "dead": lambda run: worst_dead(run)[0],
    "gap": lambda run: run.gap,
}


def reading(run: Run, trace: str) -> float:
    """The typical value of an instrument over a run."""
    return float(typical(np.asarray(SERIES[trace](run))[:, None])[0])


def first_outside(run: Run, each: Trace) -> int | None:
    """The first step at which an instrument is outside its range, or NaN."""
    values = np.asarray(SERIES[each.name](run))
    outside = np.flatnonzero(~((values >= each.low) & (values <= each.high)))
    return int(run.steps_of(each.name)[outside[0]]) if len(outside) else None


# --- as text --------------------------------------------------------------------------------------


def tables_as_text(studies: list[Study]) -> str:
    """Both tables as text, for the terminal."""
    lines = ["Look-alikes: losses that cannot be told apart, and what separates them", ""]
    for pair in look_alikes(studies):
        lines.append(f"  {pair.one} / {pair.other}: losses within {pair.difference:.1%}")
        readings = " / ".join(f"{value:.2g}" for value in pair.readings)
        lines.append(
            f"      {pair.instrument}: {readings}" if pair.instrument else "      no instrument separates them"
        )
    names = [each.words for each in RANGES if each.name in SERIES]
    lines += [
        "",
        "Lead time: steps by which each instrument leaves its healthy range before the loss shows the failure",
        "",
    ]
    lines.append(f"  {'':26}{'loss at':>9}" + "".join(f"{name:>20}" for name in names))
    for row in lead_times(studies):
        cells = "".join(f"{_signed(row.lead(name)):>20}" for name in names)
        lines.append(f"  {row.name:26}{'-' if row.loss is None else row.loss:>9}{cells}")
    lines += [
        "",
        "  + is earlier than the loss, - later; a dot: it stays in its range, or leaves it in the healthy twin too",
    ]
    return "\n".join(lines)


def _signed(lead: int | None) -> str:
    return "." if lead is None else f"{lead:+d}"
