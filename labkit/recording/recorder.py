"""The Recorder: one look per step, after `loss.backward()` and before `optimizer.step()`."""

import contextlib
import math
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from labkit.recording.guard import Guard, ProtectedHook
from labkit.recording.meters import ActivationMeter, Probe, WeightMeter, first_column, first_weights
from labkit.recording.nan_hunt import hunt
from labkit.recording.past import MOST, Past, chapter_length
from labkit.recording.run import Run
from labkit.recording.sample_log import SampleLog

# The names of the instruments, for the line that says which one was switched off.
WEIGHTS, ACTIVATIONS = "gradients and weights", "activations"
SAMPLES, PROBE, ORIGIN = "samples and labels", "the probe", "the origin of a non-finite value"
TESTS = "the tests on the probe"
CHECK_EVERY = 32  # steps between checks for NaN on a GPU, because a check synchronises; on a CPU every step is checked
# Measured in full, that is with activations, extremes and near-zero shares: the first steps, where most failures show;
# then every sixteenth, where they cost little; and some steps after a jump of the loss or of the gradient norm.
FIRST_FULL, FULL_EVERY, AFTER_JUMP = 50, 16, 8
# Standard deviations above the running mean of the last MEMORY steps or so. 30 healthy runs of the catalogue jump twice
# in 10,750 steps; a corrupt batch always does.
JUMP, MEMORY = 6.0, 64
MOST_EVENTS = 1000  # that are kept: a loop that skips every second step would fill the memory
PATIENCE = 5  # consecutive non-finite losses that end a run; a single one may be a batch that the loop skips


class FullSteps:
    """Which steps are measured in full: the first ones, every n-th, and those after a jump."""

    def __init__(self, every: int):
        self.every = every
        self.until = FIRST_FULL
        self.after_jumps: list[int] = []  # steps that are measured in full for no other reason than a jump, or `also`
        self.loss, self.norm = RunningMean(), RunningMean()

    def __contains__(self, step: int) -> bool:
        return step % self.every == 0 or step < self.until

    def jumped(self, step: int, loss: float, norm: float, taken: int) -> bool:
        """Did the loss or the gradient norm of this step jump? Then the next ones are measured in full.

        `taken`: the steps taken so far. Where checks come late, as on a GPU, this step is no longer the last.
        """
        loss_jumped, norm_jumped = self.loss.jumped(loss), self.norm.jumped(norm)  # both remember
        if not (loss_jumped or norm_jumped) or self.every == 1:
            return False
        for later in range(max(taken, self.until), taken + AFTER_JUMP):
            if later not in self:
                self.after_jumps.append(later)
        self.until = max(self.until, taken + AFTER_JUMP)
        return True

    def also(self, step: int) -> None:
        """This step too is measured in full."""
        if step not in self:
            self.after_jumps.append(step)
            self.until = step + 1

    def facts(self, recorded: np.ndarray) -> dict:
        """Of the steps that are recorded."""
        also = np.intersect1d(self.after_jumps, recorded).astype(int).tolist()
        return {"first": FIRST_FULL, "every": self.every, "also": also}


class RunningMean:
    """The mean and the variance of a number over the last MEMORY steps or so, to tell a jump from noise."""

    def __init__(self):
        self.seen, self.mean, self.variance = 0, 0.0, 0.0

    def jumped(self, value: float) -> bool:
        """Is this value far above those before it? Remembers it, unless it is not finite."""
        if not math.isfinite(value):
            return True
        off = value - self.mean
        far = self.seen >= FIRST_FULL and off > 0 and off * off > JUMP * JUMP * self.variance
        self.seen += 1
        weight = max(1 / self.seen, 1 / MEMORY)
        self.mean += weight * off
        self.variance = (1 - weight) * (self.variance + weight * off * off)
        return far


class LossRecorder:
    """Records the loss, the learning rate and the validation results, and nothing else."""

    def __init__(self, optimizer, device: torch.device, check_every: int | None = None):
        """`optimizer`: one, or several in a list; the learning rate is that of the first."""
        self.optimizers = tuple(optimizer) if isinstance(optimizer, tuple | list) else (optimizer,)
        self.check_every = check_every or (1 if device.type == "cpu" else CHECK_EVERY)
        self.rows: list[tuple[float, ...] | torch.Tensor] = []  # tensors where they stay on a device
        self.lrs: list[float | torch.Tensor] = []
        self.scales: list[float | torch.Tensor] = []
        self.evaluations: list[dict] = []
        self.events: list[dict] = []
        self.first_nonfinite: dict | None = None
        self.bad_losses = 0  # in a row
        self.checked = 0  # steps already checked for NaN
        self.chapter = MOST  # steps that are recorded before they become the past
        self.past = Past(self.chapter)
        self.began = 0  # the first step of the current chapter: what is recorded of earlier ones is in the past

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    @property
    def steps(self) -> int:
        return self.began + len(self.rows)

    @property
    def updates(self) -> int:
        """How many updates were made."""
        return self.steps

    @property
    def hopeless(self) -> bool:
        """Has the loss been non-finite for PATIENCE steps in a row?"""
        return self.bad_losses >= PATIENCE

    @torch.no_grad()
    def look(
        self,
        loss: torch.Tensor,
        x: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        loss_scale: float | torch.Tensor = 1.0,
    ) -> None:
        """Record one step: call it after `loss.backward()` and before `optimizer.step()`."""
        self._note(self._measure(loss, y), x, y, loss_scale)

    def _note(self, row: tuple[float, ...] | torch.Tensor, x, y, loss_scale) -> None:
        self.rows.append(row)
        lr = self.optimizers[0].param_groups[0]["lr"]
        self.lrs.append(lr.detach().clone() if torch.is_tensor(lr) else lr)  # a tensor is changed in place
        self.scales.append(loss_scale)
        if self.steps % self.check_every == 0:
            self._check(x, y)

    def validate(self, **results: torch.Tensor | float) -> None:
        """Record validation results after the steps so far."""
        plain = {
            f"val_{name}": each.detach().clone() if torch.is_tensor(each) else each for name, each in results.items()
        }
        self.evaluations.append(plain | {"val_step": self.updates})

    def as_run(self, recipe: dict | None = None, **facts: Any) -> Run:
        """Everything recorded so far, as plain arrays."""
        self._check()
        traces = self.past.before(self._chapter_traces()) | stacked(self.evaluations)
        facts |= {"first_nonfinite": self._placed(self.first_nonfinite, traces), **self._facts(traces["step"])}
        facts |= self.past.facts()
        events = tuple(self._placed(event, traces) or event for event in self.events)
        return Run(traces, **self._axes(), recipe=recipe or {}, facts=facts, events=events)

    def not_listening(self) -> contextlib.AbstractContextManager:
        """For forward passes that no instrument should see."""
        return contextlib.nullcontext()

    def _chapter_traces(self) -> dict[str, np.ndarray]:
        """One row for each step of the current chapter."""
        scales = np.array([float(scale) for scale in self.scales])
        steps = np.arange(self.began, self.began + len(scales))
        traces = {"step": steps, "lr": np.array([float(lr) for lr in self.lrs]), "loss_scale": scales} | self._traces()
        # Ctrl-C in the middle of a look leaves some traces one step longer.
        return {name: values[: len(scales)] for name, values in traces.items()}

    def _begin_chapter(self) -> None:
        """What was recorded becomes the past, of which fewer steps are kept: memory stays bounded."""
        self._check()
        self.past.add(self._chapter_traces())
        self.began = self.steps
        self.rows, self.lrs, self.scales = [], [], []

    def _placed(self, origin: dict | None, traces: dict[str, np.ndarray]) -> dict | None:
        """The same finding with its stage and place, read from the traces where it was too late to replay."""
        if origin and origin["stage"] == "unknown":
            row = int(np.searchsorted(traces["step"], origin["step"]))
            found = origin_from_traces(traces, row, **self._axes())
            return origin | (found | {"step": int(traces["step"][found["step"]])} if found else {})
        return origin

    def _check(self, x=None, y=None) -> None:
        """Is anything non-finite since the last check? If so, and if it is new, find its origin."""
        if self.checked == self.steps:
            return
        new: list[Any] = self.rows[self.checked - self.began :]
        first, recent = self.checked, torch.stack(new).tolist() if torch.is_tensor(new[0]) else new
        self.checked = self.steps
        for step, row in enumerate(recent, start=first):
            self._compare(step, row)
            fine = math.isfinite(sum(row))  # float32 numbers cannot add up to infinity in float64
            if not fine:
                self.past.notable.append(step)
            self.bad_losses = 0 if math.isfinite(row[0]) else self.bad_losses + 1
            if fine and self.first_nonfinite:  # all is finite again: the loop skipped the bad step
                if len(self.events) < MOST_EVENTS:
                    self.events.append({"kind": "skipped", **self.first_nonfinite})
                self.first_nonfinite = None
            elif not fine and self.first_nonfinite is None:
                self.first_nonfinite = self._origin(step, x, y)

    # --- what a recorder with more instruments overrides ---

    def _measure(self, loss, y) -> tuple[float, ...] | torch.Tensor:
        return (loss.item(),) if loss.device.type == "cpu" else loss.detach().float().reshape(1)

    def _compare(self, step: int, row) -> None:
        """Look at the numbers of a step that were just checked."""

    def _traces(self) -> dict[str, np.ndarray]:
        return {"loss": first_column(self.rows)}

    def _axes(self) -> dict[str, tuple[str, ...]]:
        return {}

    def _facts(self, steps: np.ndarray) -> dict:
        """Of the recorded steps."""
        return {}

    def _origin(self, step: int, x, y) -> dict:
        return {"step": step, "stage": "loss", "place": "loss"}


class Recorder(LossRecorder):
    """All instruments around a training loop, ours or your own.

    `with Recorder(...)`: `look` once per step, `validate` now and then, `as_run` at any time.
    """

    def __init__(
        self,
        model,
        optimizer,
        *,
        loss=None,
        probe=None,
        autocast=contextlib.nullcontext,
        check_every=None,
        full_every=FULL_EVERY,
        called=None,
        guard=None,
    ):
        """`full_every=16` measures every sixteenth step in full, beside the first 50 and those after a jump.

        `guard` decides what happens when an instrument fails: by default it raises.
        """
        self.model, self.loss, self.autocast, self.guard = model, loss, autocast, guard or Guard()
        self.device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        super().__init__(optimizer, self.device, check_every)
        self.weights: WeightMeter | None = None
        self.first_weights: dict[str, dict] = {}
        self.activations = ActivationMeter(model, called)
        self.samples = SampleLog(model, self.optimizers, called)
        self.probe = Probe(model, loss, *probe, autocast, self.guard) if probe is not None else None
        self.tested = None  # the task, and the results of the tests on the probe, at the end
        self.full = FullSteps(full_every)
        if not any(is_lazy(weight) for weight in model.parameters()):  # these get their shape in the first forward pass
            self._begin_weights()
        self._settle_chapter()

    def _begin_weights(self) -> None:
        self.weights = self._try(WEIGHTS, lambda: WeightMeter(self.model))
        self.first_weights = self._try(WEIGHTS, lambda: first_weights(self.model)) or {}

    @property
    def _weight_meter(self) -> WeightMeter:
        assert self.weights, "the weights are not known before the first forward pass"
        return self.weights

    def _settle_chapter(self) -> None:
        columns = {name: len(each) for name, each in self._axes().items()}
        self.chapter = chapter_length(
            10 + 4 * columns.get("layers", 0) + 5 * columns.get("parameters", 0) + 3 * columns["activations"]
        )
        self.past = Past(self.chapter)

    def __enter__(self):
        self.activations.attach(self._protecting(ACTIVATIONS))
        self.samples.attach(self._protecting(SAMPLES))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.activations.detach()
        self.samples.detach()
        hurried = kind is not None and not issubclass(kind, Exception)  # Ctrl-C
        if self.probe and self.steps and not hurried:
            self.tested = self._try(TESTS, self.probe.test)

    def not_listening(self) -> contextlib.AbstractContextManager:
        return self.samples.not_listening()

    def _try(self, instrument: str, measure: Callable[[], Any]) -> Any:
        """What the instrument measures; None where it is switched off."""
        return self.guard(instrument, self.updates, measure)

    def _protecting(self, instrument: str) -> Callable[[Callable], Callable]:
        """For hooks on the net: a decorator that lets no error of the instrument through."""
        return lambda hook: ProtectedHook(self.guard, instrument, lambda: self.updates, hook)

    def validate(self, **results: torch.Tensor | float) -> None:
        """Record validation results, and examine the fixed probe batch at the same time."""
        examined: dict[str, torch.Tensor] = {}  # first: Ctrl-C in here must not leave half a record
        if self.probe:
            with self.samples.not_listening():
                examined = self._try(PROBE, lambda: self.probe.examine(self.updates)) or {}
        super().validate(**results)
        self.evaluations[-1] |= examined | (self._try(SAMPLES, self.samples.evaluation) or {})

    def _measure(self, loss, y) -> tuple[float, ...] | torch.Tensor:
        row = WeightMeter.row(loss, self._hold())
        self._try(SAMPLES, lambda: self.samples.step(loss, y))
        return row

    def _hold(self) -> float | torch.Tensor:
        """Measure what is there before the update; returns the norm of all gradients."""
        if len(self.rows) >= self.chapter:
            self._begin_chapter()
        if self.weights is None and WEIGHTS in self.guard:
            self._begin_weights()
            self._settle_chapter()
        full = self.steps in self.full
        if self._activations_due:
            self._try(ACTIVATIONS, lambda: self.activations.keep(len(self.rows)))
        norm = self._try(WEIGHTS, lambda: self._weight_meter.hold(full))
        if norm is None:  # switched off
            return 0.0 if self.device.type == "cpu" else torch.zeros((), device=self.device)
        return norm

    def _begin_chapter(self) -> None:
        super()._begin_chapter()
        silent = self.weights.without_gradient if self.weights else set()
        self.weights = self._try(WEIGHTS, lambda: WeightMeter(self.model))
        if self.weights:
            self.weights.without_gradient = silent
        self.activations.begin_chapter()
        self._try(SAMPLES, self.samples.begin_chapter)

    @property
    def _activations_due(self) -> bool:
        """At steps in full; at all where checks come late: the origin of a NaN is then read from the traces."""
        return self.check_every > 1 or self.steps in self.full

    def _note(self, row, x, y, loss_scale) -> None:
        super()._note(row, x, y, loss_scale)
        if len(self.rows) >= self.chapter:
            self.full.also(self.steps)  # so that the traces of the next chapter begin with numbers
        self.activations.listen(self._activations_due)

    def _compare(self, step: int, row) -> None:
        if not self.full.jumped(step, *row, taken=self.steps):
            return
        self.past.notable.append(step)
        if step == self.steps - 1 and self.weights:
            self._try(WEIGHTS, self.weights.measure_in_full)  # of this step, whose gradients are still there

    def _traces(self) -> dict[str, np.ndarray]:
        found = super()._traces()
        if self.weights:
            found |= self._try(WEIGHTS, lambda: self._weight_meter.traces(self.rows)) or {}
        found |= self._try(ACTIVATIONS, lambda: self.activations.traces(len(self.rows))) or {}
        return found | (self._try(SAMPLES, self.samples.traces) or {})

    def _axes(self) -> dict[str, tuple[str, ...]]:
        heads = self.probe.heads if self.probe else ()
        axes = {"layers": self.weights.layers, "parameters": self.weights.names} if self.weights else {}
        return axes | {"activations": self.activations.names, "heads": heads}

    def _facts(self, steps: np.ndarray) -> dict:
        facts: dict[str, Any] = {"measured_in_full": self.full.facts(steps), "dtypes": self._dtypes()}
        facts |= {"momentum": self._try(WEIGHTS, lambda: momentum_of(self.optimizers)) or 0.0}
        if self.weights:
            facts |= {"matrices": self.weights.matrices, "without_gradient": sorted(self.weights.without_gradient)}
            facts["never_trained"] = self._try(WEIGHTS, self.weights.fresh) or []
            facts["first_weights"] = {
                layer: {name: float(each) for name, each in found.items()}
                for layer, found in self.first_weights.items()
            }
        if self.probe and self.probe.constant_loss is not None and math.isfinite(self.probe.constant_loss):
            facts["constant_loss"] = self.probe.constant_loss
        if self.tested:
            facts["task"], facts["probe_tests"] = self.tested
        return facts | (self._try(SAMPLES, self.samples.facts) or {}) | self.guard.facts()

    def _dtypes(self) -> dict[str, list[str]]:
        """The number formats of the weights, the inputs, the outputs and the optimizers' state."""
        states = (state for each in self.optimizers for state in each.state.values() if isinstance(state, dict))
        memory = [value for state in states for value in state.values()]
        kinds = {
            "weights": {weight.dtype for weight in self.model.parameters()},
            "inputs": self.activations.input_formats,
            "outputs": self.activations.formats,
            "state": {value.dtype for value in memory if torch.is_tensor(value) and value.ndim},  # not the step count
        }
        return {kind: sorted(str(each)[6:] for each in formats) for kind, formats in kinds.items()}

    def _origin(self, step: int, x, y) -> dict:
        if self.check_every > 1:
            return {"step": step, "stage": "unknown"}  # too late to replay: `as_run` reads it from the traces
        with self.samples.not_listening():
            found = self._try(ORIGIN, lambda: self._find_origin(x, y))
        found = found or {"stage": "loss", "place": "loss"}
        # Weights become non-finite in an update, and the next look sees it.
        return {"step": max(0, step - (found["stage"] == "weights")), **found}

    def _find_origin(self, x, y) -> dict | None:
        return hunt(self.model, x, y, self.loss, self.autocast)


def momentum_of(optimizers: Iterable[torch.optim.Optimizer]) -> float:
    """The highest momentum of all groups of weights; Adam and its kin call it the first beta."""
    groups = [group for each in optimizers for group in each.param_groups]
    return max((float(group.get("momentum") or group.get("betas", (0.0,))[0]) for group in groups), default=0.0)


def stacked(evaluations: list[dict]) -> dict[str, np.ndarray]:
    """One array per result from a list of evaluations; tensors are copied to the CPU here, not before."""
    names = dict.fromkeys(name for one in evaluations for name in one)
    return {name: _column([one.get(name) for one in evaluations]) for name in names}


def _column(values: list) -> np.ndarray:
    """One row per evaluation; NaN where an evaluation does not have this result."""
    values = [in_single_precision(each) if torch.is_tensor(each) else each for each in values]
    if all(map(torch.is_tensor, values)) and len({each.shape for each in values}) == 1:
        return torch.stack(values).cpu().numpy()
    plain = [each.cpu().numpy() if torch.is_tensor(each) else each for each in values]
    shapes = {np.shape(each) for each in plain if each is not None}
    if len(shapes) > 1:  # such as one value per class, of classes that change: their mean
        plain, shapes = [each if each is None else float(np.mean(each)) for each in plain], {()}
    (shape,) = shapes
    return np.array([np.full(shape, np.nan) if each is None else each for each in plain])


def in_single_precision(values: torch.Tensor) -> torch.Tensor:
    """Of shorter floats: NumPy has no bfloat16."""
    return values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values


def origin_from_traces(traces: dict[str, np.ndarray], since: int, *, layers, activations, **_) -> dict | None:
    """The origin of non-finite values, read from the traces: less exact than a replay, but possible at any time."""
    order = [  # in the order of one step; backward reaches the last layer first
        ("weights", "weight_norm", layers),
        ("inputs", "activation_mean", ("batch",)),
        ("activations", "activation_mean", activations),
        ("loss", "loss", ("loss",)),
        ("gradients", "grad_norm", layers[::-1]),
    ]
    found = []
    for rank, (stage, name, places) in enumerate(order):
        if name not in traces:
            continue
        bad = ~np.isfinite(traces[name].reshape(len(traces[name]), -1))[:, : len(places)]
        if stage == "gradients":
            bad = bad[:, ::-1]
        bad[:since] = False
        if bad.any():
            step = int(bad.any(1).argmax())
            place = places[int(bad[step].argmax())]
            found.append((step, rank, {"step": max(0, step - (stage == "weights")), "stage": stage, "place": place}))
    return min(found)[2] if found else None
