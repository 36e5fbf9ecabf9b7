"""What one training run recorded: plain arrays and facts, saved and loaded without pickle."""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

FORMAT = "labkit-run-1"


class RunError(ValueError):
    """A file that is not a readable run."""


class NoTrace(KeyError):
    """A trace that this run does not have."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return self.args[0]


@dataclass(frozen=True)
class Run:
    """One training run as its instruments saw it.

    `traces` holds one array per instrument. Its first axis is the training step (`step`) or, for
    `val_*`, `probe_*`, `dead`, `twins`, `histogram*`, `attention_entropy` and `sample_loss_*`, the
    evaluation (`val_step`: how many updates the weights had seen). The second axis, where there is
    one, follows `layers`, `parameters`, `activations` or `heads`.
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
        accuracy = f", validation accuracy {self.accuracy:.1%}" if self.accuracy is not None else ""
        return f"<Run of {len(self)} steps, {len(self.layers)} layers{accuracy}{self._ending()}>"

    def _repr_html_(self) -> str:
        from labkit.drawing.html import run_html  # only a notebook needs it, and a run must load without matplotlib

        return run_html(self)

    def _ending(self) -> str:
        origin = self.facts.get("first_nonfinite")
        return f", non-finite from step {origin['step']} ({origin['stage']})" if origin else ""

    @property
    def accuracy(self) -> float | None:
        """The last validation accuracy, or None where nothing was validated."""
        values = self.traces.get("val_accuracy", ())
        return float(values[-1]) if len(values) else None

    @property
    def gap(self) -> np.ndarray:
        """Generalisation gap: validation loss minus the loss on the training probe, both in eval mode."""
        return self["val_loss"] - self["probe_loss"]

    @property
    def clipped(self) -> np.ndarray:
        """At which steps the gradient was clipped: its norm, or its largest entry, passed the threshold."""
        if "clipped" in self:  # where the threshold was changed on the way, it was noted
            return self["clipped"]
        clip = self.facts.get("clip")
        if clip is None:
            return np.zeros(len(self), dtype=bool)
        if self.facts["clip_by"] == "norm":
            return self["grad_norm_total"] > clip
        return np.maximum(self["grad_max"], -self["grad_min"]).max(axis=1) > clip

    def smoothed(self, name: str = "loss", beta: float = 0.9) -> np.ndarray:
        """A trace's bias-corrected exponential mean. It lags and hides spikes: show it beside the raw one."""
        values = np.asarray(self[name], dtype=np.float64)
        average, result = np.zeros(values.shape[1:]), np.empty_like(values)
        for index, value in enumerate(values):
            average = beta * average + (1 - beta) * value
            result[index] = average / (1 - beta ** (index + 1))
        return result

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
        """Write the run as .npz, whole or not at all."""
        path = Path(path)
        head = {"format": FORMAT, "recipe": self.recipe, "facts": self.facts, "events": list(self.events)}
        head |= {name: list(getattr(self, name)) for name in AXES}
        arrays = {f"trace/{name}": values for name, values in self.traces.items()}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
        with written_whole(path) as stream:
            np.savez_compressed(stream, **arrays)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Run":
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                head = json.loads(bytes(file["head"]))
                traces = {name.removeprefix("trace/"): file[name] for name in file.files if name != "head"}
            if head.get("format") == FORMAT:
                axes = {name: tuple(head[name]) for name in AXES}
                return cls(traces, **axes, recipe=head["recipe"], facts=head["facts"], events=tuple(head["events"]))
        except FileNotFoundError:
            raise RunError(f"there is no run at {path}; save one with run.save(...) first") from None
        except Exception as error:  # numpy, zipfile, zlib and json each have their own words for damage
            raise RunError(
                f"{path} is not a readable labkit run (expected {FORMAT}, got: {error}). "
                "It may be cut short or damaged: copy it again, or record the run again."
            ) from error
        raise RunError(f"{path} has format {head.get('format')!r}; this labkit reads {FORMAT!r}")


AXES = ("layers", "parameters", "activations", "heads")


class written_whole:
    """`with written_whole(path) as stream`: the file appears complete at the end, or not at all."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, self.temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        self.stream = os.fdopen(handle, "wb")
        return self.stream

    def __exit__(self, kind, error, trace):
        self.stream.close()
        if kind is None:
            os.chmod(self.temporary, 0o644)  # mkstemp gives 0600; a saved file is meant to be shared
            os.replace(self.temporary, self.path)
        else:
            os.unlink(self.temporary)
