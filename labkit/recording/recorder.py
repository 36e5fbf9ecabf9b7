"""The Recorder: one look per step, when gradients are ready and weights are not yet changed."""

import contextlib
import math

import numpy as np
import torch

from labkit.recording.sample_log import Ledger
from labkit.recording.meters import ActivationMeter, Probe, WeightMeter
from labkit.recording.run import Run
from labkit.recording.nan_hunt import hunt

CHECK_EVERY = 32  # steps between checks for NaN on a GPU, because a check makes it wait; on a CPU every step
PATIENCE = 5  # non-finite losses in a row after which a run is given up; one alone may be a batch that was skipped


class LossRecorder:
    """Notes the loss, the learning rate and the validations, and nothing else: the bare patient."""

    def __init__(self, optimizer, device: torch.device, check_every: int | None = None):
        self.optimizer = optimizer
        self.check_every = check_every or (1 if device.type == "cpu" else CHECK_EVERY)
        self.rows, self.lrs, self.scales, self.evaluations = [], [], [], []
        self.events: list[dict] = []
        self.first_nonfinite: dict | None = None
        self.bad_losses = 0  # in a row
        self.checked = 0  # steps that were looked through for NaN

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    @property
    def steps(self) -> int:
        return len(self.rows)

    @property
    def updates(self) -> int:
        """How many updates the weights have seen."""
        return self.steps

    @property
    def hopeless(self) -> bool:
        """Has the loss been non-finite for so long that nothing more can be learned?"""
        return self.bad_losses >= PATIENCE

    @torch.no_grad()
    def look(self, loss, x=None, y=None, loss_scale=1.0) -> None:
        """The one moment: the loss of this batch, its gradients in place, the weights not yet changed."""
        self._note(self._measure(loss, y), x, y, loss_scale)

    def _note(self, row: torch.Tensor, x, y, loss_scale) -> None:
        self.rows.append(row)
        self.lrs.append(self.optimizer.param_groups[0]["lr"])
        self.scales.append(loss_scale)
        if self.steps % self.check_every == 0:
            self._check(x, y)

    def validate(self, **results) -> None:
        """Note validation results after so many steps."""
        plain = {f"val_{name}": each.detach() if torch.is_tensor(each) else each for name, each in results.items()}
        self.evaluations.append({"val_step": self.updates, **plain})

    def run(self, recipe: dict | None = None, **facts) -> Run:
        """All that was recorded so far, as plain arrays."""
        self._check()
        scales = np.array([float(scale) for scale in self.scales])
        traces = {"step": np.arange(self.steps), "lr": np.array(self.lrs), "loss_scale": scales} | self._traces()
        whole = len(scales)  # Ctrl-C in the middle of a look leaves some traces one step longer
        traces = {name: values[:whole] for name, values in traces.items()} | stacked(self.evaluations)
        facts |= {"first_nonfinite": self._placed(self.first_nonfinite, traces), **self._facts()}
        events = tuple(self._placed(event, traces) for event in self.events)
        return Run(traces, **self._axes(), recipe=recipe or {}, facts=facts, events=events)

    def _placed(self, origin: dict | None, traces: dict[str, np.ndarray]) -> dict | None:
        """The same finding with its stage and place, read off the traces where nobody looked in time."""
        if origin and origin["stage"] == "unknown":
            return origin | (origin_from_traces(traces, origin["step"], **self._axes()) or {})
        return origin

    def _check(self, x=None, y=None) -> None:
        """Is anything non-finite since the last check? If so, and if it is new, find where it began."""
        if self.checked == self.steps:
            return
        recent, first = self.rows[self.checked :], self.checked
        recent = torch.stack(recent).tolist() if len(recent) > 1 else [recent[0].tolist()]
        self.checked = self.steps
        for step, row in enumerate(recent, start=first):
            fine = math.isfinite(sum(row))  # float32 numbers cannot add up to infinity in float64
            self.bad_losses = 0 if math.isfinite(row[0]) else self.bad_losses + 1
            if fine and self.first_nonfinite:  # the bad step left no mark: somebody skipped it
                self.events.append({"kind": "skipped", **self.first_nonfinite})
                self.first_nonfinite = None
            elif not fine and self.first_nonfinite is None:
                self.first_nonfinite = self._origin(step, x, y)

    # --- what a recorder with more instruments does more of ---

    def _measure(self, loss, y) -> torch.Tensor:
        return loss.detach().float().reshape(1)

    def _traces(self) -> dict[str, np.ndarray]:
        return {"loss": torch.cat(self.rows).double().cpu().numpy() if self.rows else np.zeros(0)}

    def _axes(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _facts(self) -> dict:
        return {}

    def _origin(self, step: int, x, y) -> dict:
        return {"step": step, "stage": "loss", "place": "loss"}


class Recorder(LossRecorder):
    """Every instrument around a training loop, ours or anybody's.

    `with Recorder(...)`: `look` once per step, `validate` now and then, `run` at any time.
    """

    def __init__(
        self, model, optimizer, *, loss=None, probe=None, autocast=contextlib.nullcontext, check_every=None, called=None
    ):
        self.model, self.loss, self.autocast = model, loss, autocast
        self.weights, self.activations = WeightMeter(model), ActivationMeter(model, called)
        self.ledger = Ledger(model, optimizer, called)
        self.probe = Probe(model, loss, *probe, autocast) if probe is not None else None
        super().__init__(optimizer, self.weights.device, check_every)

    def __enter__(self):
        self.activations.attach()
        self.ledger.attach()
        return self

    def __exit__(self, *_) -> None:
        self.activations.detach()
        self.ledger.detach()

    def validate(self, **results) -> None:
        """Note validation results, and examine the fixed probe batch at the same time."""
        with self.ledger.not_listening():
            examined = self.probe.examine() if self.probe else {}  # first: Ctrl-C in here must not leave half a note
        super().validate(**results)
        self.evaluations[-1] |= examined | self.ledger.evaluation()

    def _measure(self, loss, y) -> torch.Tensor:
        self.ledger.step(loss, y)
        self.activations.keep()
        return self.weights.measure(loss)

    def _traces(self) -> dict[str, np.ndarray]:
        return self.weights.traces(self.rows) | self.activations.traces() | self.ledger.traces()

    def _axes(self) -> dict[str, tuple[str, ...]]:
        heads = self.probe.heads if self.probe else ()
        axes = {"layers": self.weights.layers, "parameters": self.weights.names}
        return axes | {"activations": self.activations.names, "heads": heads}

    def _facts(self) -> dict:
        silent = sorted(self.weights.without_gradient)
        facts = {"matrices": self.weights.matrices, "without_gradient": silent, "dtypes": self._dtypes()}
        return facts | self.ledger.facts()

    def _dtypes(self) -> dict[str, list[str]]:
        """In which formats the weights are kept, the outputs come, and the optimizer remembers."""
        memory = [value for state in self.optimizer.state.values() for value in state.values()]
        kinds = {
            "weights": {weight.dtype for weight in self.weights.weights},
            "outputs": self.activations.formats,
            "state": {value.dtype for value in memory if torch.is_tensor(value) and value.ndim},  # not the step count
        }
        return {kind: sorted(str(each)[6:] for each in formats) for kind, formats in kinds.items()}

    def _origin(self, step: int, x, y) -> dict:
        if self.check_every > 1:
            return {"step": step, "stage": "unknown"}  # too late to replay: `run` reads it off the traces
        with self.ledger.not_listening():
            found = hunt(self.model, x, y, self.loss, self.autocast) or {"stage": "loss", "place": "loss"}
        # Weights go bad in an update, and are seen bad at the look after it.
        return {"step": max(0, step - (found["stage"] == "weights")), **found}


def stacked(evaluations: list[dict]) -> dict[str, np.ndarray]:
    """One array per result from a list of evaluations; tensors come to the CPU here, not before."""
    if not evaluations:
        return {}
    as_array = {name: [one[name] for one in evaluations] for name in evaluations[0]}
    return {
        name: torch.stack(values).cpu().numpy() if torch.is_tensor(values[0]) else np.array(values)
        for name, values in as_array.items()
    }


def origin_from_traces(traces: dict[str, np.ndarray], since: int, *, layers, activations, **_) -> dict | None:
    """Where non-finite values began, read off what was recorded: less exact than a replay, but never too late."""
    order = [  # as one step goes; of layers that went bad in the same step, backward meets the last first
        ("weights", "weight_norm", layers),
        ("inputs", "activation_mean", ("batch",)),
        ("activations", "activation_mean", activations),
        ("loss", "loss", ("loss",)),
        ("gradients", "grad_norm", layers[::-1]),
    ]
    found = []
    for rank, (stage, name, places) in enumerate(order):
        bad = ~np.isfinite(traces[name].reshape(len(traces[name]), -1))[:, : len(places)]
        if stage == "gradients":
            bad = bad[:, ::-1]
        bad[:since] = False
        if bad.any():
            step = int(bad.any(1).argmax())
            place = places[int(bad[step].argmax())]
            found.append((step, rank, {"step": max(0, step - (stage == "weights")), "stage": stage, "place": place}))
    return min(found)[2] if found else None
