"""Is a run what the tables of traces and facts say? A run from a file is checked once, then readers can trust it."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import numpy as np

from labkit.recording.facts import EVENT, FACTS, Kind, is_text
from labkit.recording.traces import AXES, EVALUATION, STEP, TRACES

if TYPE_CHECKING:
    from labkit.recording.run import Run

LONGEST_NAME = 500  # characters; the longest names of modules in large nets have about 100


def problem(run: Run) -> str | None:
    """What contradicts the tables, as "expected ..., got ..."; None for a sound run."""
    return _of_names(run) or _of_head(run) or _of_traces(run) or _of_steps(run)


def _of_names(run: Run) -> str | None:
    for axis in AXES:
        for name in getattr(run, axis):
            if not _is_name(name):
                return f"{axis}: expected names, got {reprlib.repr(name)}"
    for name in run.traces:
        if not _is_name(name):
            return f"the name of a trace: expected printable text, got {reprlib.repr(name)}"
    return None


def _is_name(name: object) -> bool:
    return is_text(name) and isinstance(name, str) and name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _of_head(run: Run) -> str | None:
    for name in ("recipe", "facts"):
        if not isinstance(getattr(run, name), dict):
            return f"{name}: expected a dictionary, got {reprlib.repr(getattr(run, name))}"
    for event in run.events:
        if found := _mismatch("an event", EVENT, event):
            return found
    given = ((name, run.facts[name]) for name in FACTS if name in run.facts)
    return next(filter(None, (_mismatch(f"fact {name!r}", FACTS[name], value) for name, value in given)), None)


def _mismatch(what: str, kind: Kind, value: object) -> str | None:
    return None if kind.fits(value) else f"{what}: expected {kind.words}, got {reprlib.repr(value)}"


def _of_traces(run: Run) -> str | None:
    for name, values in run.traces.items():
        if not isinstance(values, np.ndarray):
            return f"trace {name!r}: expected an array, got {reprlib.repr(values)}"
        if values.dtype.kind not in "biuf" or not values.ndim:
            kind = "a single value" if not values.ndim else str(values.dtype)
            return f"trace {name!r}: expected numbers, one row per step or evaluation, got {reprlib.repr(kind)}"
    for name in (STEP, "loss") if run.traces else ():
        if name not in run:
            return f"expected a trace {name!r}, got {', '.join(sorted(run.traces)[:8])}"
    return next(filter(None, (_of_trace(run, name) for name in run.traces)), None)


def _of_trace(run: Run, name: str) -> str | None:
    """Rows and columns of one trace."""
    about, shape = run.about(name), run[name].shape
    if about.rows not in run or (about.rows == EVALUATION and not len(run[EVALUATION])):
        return f"trace {name!r} has one row per evaluation: expected a trace {EVALUATION!r} with rows, got none"
    if about.axis and not getattr(run, about.axis):
        return f"trace {name!r} has one column for each of the {about.axis}: expected their names, got none"
    expected: list[int | None] = [len(run[about.rows])]
    if name in TRACES:
        expected += [len(getattr(run, about.axis))] if about.axis else []
        expected += [about.inner or None] if about.inner is not None else []
        if len(shape) != len(expected):
            return f"trace {name!r}: expected {len(expected)} dimensions, got the shape {shape}"
    if any(length not in (None, given) for length, given in zip(expected, shape, strict=False)):
        wanted = ", ".join("any" if length is None else str(length) for length in expected)
        what = f"one row per {'step' if about.rows == STEP else 'evaluation'}"
        columns = f", one column for each of its {about.axis}" if about.axis else ""
        return f"trace {name!r}: expected the shape ({wanted}), {what}{columns}, got {shape}"
    return None


def _of_steps(run: Run) -> str | None:
    """Steps are counted: whole numbers that rise. Two evaluations may come after the same step."""
    for name in (STEP, EVALUATION):
        values = run.traces.get(name, np.zeros(0, dtype=int))
        if values.dtype.kind not in "iu":
            return f"trace {name!r}: expected whole numbers, got {values.dtype}"
        if len(values) and values[0] < 0:
            return f"trace {name!r}: expected steps from 0 on, got {values[0]}"
        later, earlier = values[1:], values[:-1]
        back = np.flatnonzero(later <= earlier if name == STEP else later < earlier)
        if len(back):
            return f"trace {name!r}: expected rising steps, got {later[back[0]]} after {earlier[back[0]]}"
    return None
