"""What one training run recorded: plain arrays and facts, saved and loaded without pickle."""

import json
import os
import reprlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labkit.recording.archive import read_arrays
from labkit.recording.files import written_whole
from labkit.recording.measure import ACCURACY, MEASURES, Measure
from labkit.recording.soundness import problem
from labkit.recording.traces import AXES, STEPS, TRACES, Trace, trace

FORMAT = "labkit-run-1"
PREFIX = "trace/"  # of the names of traces in a file
LARGEST_HEAD = 16 * 2**20  # bytes; a run of the lab has 2,000 or so; parsed, empty lists take 25 times as much


class RunError(ValueError):
    """A file that is not a readable run."""


class NoTrace(KeyError):
    """A trace that this run does not have."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


@dataclass(frozen=True)
class Run:
    """One training run as its instruments recorded it.

    `traces` holds one array per trace; `labkit.recording.traces.TRACES` lists them all. A row is a training step
    (`step`) or an evaluation (`val_step`: how many updates came before it), as `steps_of` says. Columns, where there
    are any, follow `layers`, `parameters`, `activations` or `heads`, as `labels_of` says.
    """

    traces: dict[str, np.ndarray]
    layers: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    activations: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    recipe: dict = field(default_factory=dict)
    facts: dict = field(default_factory=dict)
    events: tuple[dict, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.traces:
            return self.traces[name]
        raise NoTrace(f"this run has no trace {name!r}; it has {', '.join(sorted(self.traces))}")

    def __contains__(self, name: str) -> bool:
        return name in self.traces

    def __len__(self) -> int:
        """How many steps were recorded."""
        return len(self.traces.get("loss", ()))

    def __repr__(self) -> str:
        score = f", {self.measure.words} {self.measure.text(self.score)}" if self.score is not None else ""
        return f"<Run of {len(self)} steps, {len(self.layers)} layers{score}{self._ending()}>"

    def _repr_html_(self) -> str:
        from labkit.drawing.html import run_html  # only a notebook needs it, and a run must load without matplotlib

        return run_html(self)

    def _ending(self) -> str:
        origin = self.facts.get("first_nonfinite")
        return f", non-finite from step {origin['step']} ({origin['stage']})" if origin else ""

    def about(self, name: str) -> Trace:
        """What is known about a trace: its entry in TRACES, or what its name and rows tell if it is not there."""
        rows, evaluations = (len(self.traces.get(each, ())) for each in (name, "val_step"))
        return trace(name, rows, steps=len(self), evaluations=evaluations)

    def steps_of(self, name: str) -> np.ndarray:
        """When the rows of a trace were recorded: `step`, or `val_step` where there is one row per evaluation."""
        steps = self[self.about(name).rows]
        if name in self and len(self[name]) != len(steps):
            evaluations = len(self.traces.get("val_step", ()))
            raise RunError(
                f"trace {name!r}: expected {len(self)} rows, one per step, or {evaluations}, one per evaluation, "
                f"got {len(self[name])}"
            )
        return steps

    def labels_of(self, name: str) -> tuple[str, ...]:
        """Names of the columns of a trace; empty where it has none, or where they are not known."""
        axis = self.about(name).axis
        return getattr(self, axis) if axis else ()

    @property
    def accuracy(self) -> float | None:
        """The last validation accuracy, or None where nothing was validated."""
        values = self.traces.get("val_accuracy")
        return float(values[-1]) if values is not None and len(values) else None

    @property
    def measure(self) -> Measure:
        """What says how good this run is; the accuracy, unless its facts say otherwise."""
        return MEASURES[self.facts.get("measure", ACCURACY)]

    @property
    def score(self) -> float | None:
        """The run's own measure at the last validation, or None where nothing was validated."""
        values = self.traces.get(self.measure.trace)
        return float(values[-1]) if values is not None and len(values) else None

    @property
    def gap(self) -> np.ndarray:
        """Generalisation gap: validation loss minus the loss on the training probe, both in eval mode."""
        return self["val_loss"] - self["probe_loss"]

    @property
    def clipped(self) -> np.ndarray:
        """At which steps the gradient was clipped: its norm, or its largest entry, passed the threshold."""
        if "clipped" in self:  # where the threshold changed during the run, it was recorded
            return self["clipped"]
        clip = self.facts.get("clip")
        if clip is None:
            return np.zeros(len(self), dtype=bool)
        if self.facts.get("clip_by", "norm") == "norm":
            return self["grad_norm_total"] > clip
        return np.maximum(self["grad_max"], -self["grad_min"]).max(axis=1) > clip

    @property
    def measured_in_full(self) -> np.ndarray:
        """At which steps activations, gradient extremes and near-zero shares were measured, as True and False.

        At the others these traces repeat the last value that was measured. All other traces are exact at every step.
        (The gradient extremes of a step that jumps are measured too, where that is known in time.)
        """
        when = self.facts.get("measured_in_full")
        if when is None:
            return np.ones(len(self), dtype=bool)
        steps = self["step"] // self.facts.get("every", 1)  # of those that were measured
        return (steps < when["first"]) | (steps % when["every"] == 0) | np.isin(steps, when["also"])

    def row_of(self, step: int) -> int:
        """The row of a step, such as that of `first_nonfinite`; of one that was not kept, that of the next."""
        return min(int(np.searchsorted(self["step"], step)), len(self) - 1)

    def smoothed(self, name: str = "loss", beta: float = 0.9) -> np.ndarray:
        """A trace's bias-corrected exponential mean. It lags and hides spikes: show it beside the raw trace."""
        return exponential_mean(self[name], beta)

    def batch_loss_variance(self, window: int = 50) -> np.ndarray:
        """Variance of the batch loss over the last `window` steps, from differences of neighbours.

        Half the mean squared difference is the variance of the noise without the trend of the loss.
        """
        squares = np.diff(np.asarray(self["loss"], dtype=np.float64)) ** 2 / 2
        if not len(squares):
            return squares
        window = min(window, len(squares))
        return np.convolve(squares, np.ones(window) / window, mode="valid")

    def save(self, path: str | os.PathLike) -> Path:
        """Write the run as .npz, whole or not at all. A run that `load` would refuse is refused here."""
        path = Path(path)
        if found := problem(self):
            raise RunError(f"this run cannot be saved ({found}). Change or remove it, and save again.")
        head = {"format": FORMAT, "recipe": self.recipe, "facts": self.facts, "events": list(self.events)}
        head |= {name: list(getattr(self, name)) for name in AXES}
        arrays: dict[str, Any] = {f"{PREFIX}{name}": values for name, values in self.traces.items()}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        if found := oversized(arrays["head"]):
            raise RunError(f"this run cannot be saved ({found}). Remove facts or events, and save again.")
        with written_whole(path) as stream:
            np.savez_compressed(stream, **arrays)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Run":
        """Read what `save` wrote. What is returned agrees with the tables of traces and facts."""
        try:
            arrays = read_arrays(path)
            if found := oversized(arrays["head"]):
                raise RunError(found)
            head = json.loads(bytes(arrays.pop("head")))
            if head.get("format") == FORMAT:
                return cls._unpacked(head, arrays)
        except FileNotFoundError:
            raise RunError(f"there is no run at {path}; save one with run.save(...) first") from None
        except PermissionError:
            raise RunError(f"{path} may not be read; change its permissions, or copy it") from None
        except Exception as error:  # numpy, zipfile, zlib and json each raise their own
            raise RunError(
                f"{path} is not a readable labkit run (expected {FORMAT}, got: {error}). "
                "It may be cut short or damaged: copy it again, or record the run again."
            ) from error
        raise RunError(f"{path} has format {head.get('format')!r}; this labkit reads {FORMAT!r}")

    @classmethod
    def _unpacked(cls, head: dict, arrays: dict[str, np.ndarray]) -> "Run":
        """The run of a file's head and arrays; what does not fit the tables is refused."""
        parts = {name: head.get(name) for name in (*AXES, "events")}
        for name, value in parts.items():
            if not isinstance(value, list):
                raise RunError(f"{name}: expected a list, got {reprlib.repr(value)}")
        if foreign := next((name for name in arrays if not name.startswith(PREFIX)), None):
            raise RunError(f"expected traces, got {reprlib.repr(foreign)}")
        traces = {name.removeprefix(PREFIX): values for name, values in arrays.items()}
        run = cls(
            traces,
            **{name: tuple(value) for name, value in parts.items()},  # type: ignore[arg-type]
            recipe=head.get("recipe"),  # type: ignore[arg-type]  # checked by `problem`
            facts=head.get("facts"),  # type: ignore[arg-type]
        )
        if found := problem(run):
            raise RunError(found)
        for name in traces.keys() & TRACES.keys() - STEPS:
            traces[name] = as_floats(traces[name])
        return run


def oversized(head: np.ndarray) -> str | None:
    """What is wrong with a head that is too large to be parsed: a file of 24 KB can hold one that fills 600 MB."""
    if head.nbytes > LARGEST_HEAD:
        return f"head: expected at most {LARGEST_HEAD:,} bytes of recipe, facts and events, got {head.nbytes:,}"
    return None


def as_floats(values: np.ndarray) -> np.ndarray:
    """Floating-point numbers as they are, others as float64: differences of unsigned numbers would wrap around."""
    return values if values.dtype.kind == "f" and values.dtype.itemsize <= 8 else values.astype(np.float64)


def exponential_mean(values: np.ndarray, beta: float = 0.9) -> np.ndarray:
    """The bias-corrected exponential moving average of the rows: from the first row on, an average of real values."""
    values = np.asarray(values, dtype=np.float64)
    average, found = 0.0, []
    for count, value in enumerate(values.tolist() if values.ndim == 1 else values, start=1):  # plain numbers are faster
        average = beta * average + (1 - beta) * value
        found.append(average / (1 - beta**count))
    return np.array(found, dtype=np.float64).reshape(values.shape)
