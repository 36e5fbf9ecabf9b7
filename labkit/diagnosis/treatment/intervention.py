"""The `watch` that is handed to a treated program: it intervenes where the program calls it, then records as usual."""

import contextlib
import copy
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from labkit.diagnosis.treatment.patient import Patient
from labkit.diagnosis.treatment.prescriptions.catalogue import named
from labkit.diagnosis.watch import FULL_EVERY, Watch
from labkit.recording.nested import call, first_tensor, split_batch
from labkit.recording.run import Run
from labkit.recording.undisturbed import evaluating, replaying

SHOWN_EVERY = 0.2  # seconds between two progress reports
LOST = "plainly worse than the best arm"
PROGRAM_LOSS = "program_loss"  # a trace: the program's own loss, where a prescription minimises another
SAMPLES = 8  # of the probe, shown where only the user can find the fault


class Stopped(BaseException):
    """Ends a program from inside its `watch`: a BaseException, so that its own `except Exception` lets it through."""


@dataclass
class Curve:
    """A measure at every validation of a finished arm."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, step: int) -> float:
        """The latest value up to a step; NaN before the first."""
        known = [value for when, value in zip(self.steps, self.values, strict=True) if when <= step]
        return known[-1] if known else math.nan


@dataclass
class Limits:
    """When an arm is ended early: the curves of the untreated and of the best arm so far, higher is better."""

    measure: str = ""
    sign: float = 1.0
    untreated: Curve | None = None
    best: Curve | None = None
    seconds: float | None = None  # for programs that run in this process, where nobody can end them from outside

    # An arm is plainly lost if it has gained less than this share of what the best arm had gained at the same step,
    # when half of the steps are done.
    SHARE = 0.25

    def lost(self, step: int, steps: int, value: float) -> bool:
        if self.untreated is None or self.best is None or step < steps / 2:
            return False
        gained, most = value - self.untreated.at(step), self.best.at(step) - self.untreated.at(step)
        return math.isfinite(most) and most > 0 and not gained > self.SHARE * most


class Intervention:
    """Stands for `watch`: applies prescriptions to what it is called with, and keeps the record."""

    def __init__(
        self,
        prescriptions: Sequence[str] = (),
        steps: int = 0,
        limits: Limits | None = None,
        report: Callable[[dict], object] = lambda _: None,
        stirred_with: int | None = None,
    ):
        self.names, self.steps, self.limits, self.report = prescriptions, steps, limits or Limits(), report
        self.stirred_with = stirred_with  # a seed for the random numbers from here on
        self.records: list[TreatedWatch] = []
        self.began = time.monotonic()
        self.stopped = ""
        self.carried: tuple[dict, list[dict]] | None = None  # the state that an earlier run of the program reached

    @property
    def record(self) -> "TreatedWatch | None":
        return self.records[0] if self.records else None

    def __call__(self, model: nn.Module, optimizer: Any, **options: Any) -> "TreatedWatch":
        first = not self.records
        patient = Patient(model, optimizer, options, self.steps)
        for name in self.names:
            named(name).apply(patient)
        if self.carried and first:
            state, optimizers = self.carried
            patient.model.load_state_dict(state)
            for each, kept in zip(patient.optimizers, optimizers, strict=True):
                each.load_state_dict(kept)
        if first and self.stirred_with is not None:
            stir(patient, self.stirred_with)
        record = TreatedWatch(self, patient, optimizer)
        self.records.append(record)
        return record

    def again(self) -> None:
        """The program is run once more, and goes on from what it has reached."""
        if self.record:
            patient = self.record.patient
            self.carried = copy.deepcopy(
                (patient.model.state_dict(), [each.state_dict() for each in patient.optimizers])
            )
        self.close()
        self.records = []

    def close(self) -> None:
        """Undo what reaches beyond the model and its optimizers."""
        for record in self.records:
            record.patient.undo.close()

    def stop(self, why: str) -> None:
        self.stopped = why
        raise Stopped(why)


def set_seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def stir(patient: Patient, seed: int) -> None:
    """Other random numbers from now on, and weights that differ in their sixth digit."""
    set_seed(seed)
    with torch.no_grad():
        for weight in patient.weights():
            weight.mul_(1 + 1e-6 * torch.randn_like(weight))


class TreatedWatch(Watch):
    """A Watch over a treated program: acts at each step, reports progress, and ends arms that are plainly lost."""

    def __init__(self, intervention: Intervention, patient: Patient, optimizer: Any):
        options = patient.options
        super().__init__(
            patient.called,
            optimizer,
            options.get("probe"),
            options.get("loss_fn"),
            options.get("every", 1),
            options.get("full_every", FULL_EVERY),
            None,  # alarms are not needed: the diagnosis comes afterwards
            options.get("scaler"),
            options.get("autocast", contextlib.nullcontext),
            False,
        )
        self.intervention, self.patient = intervention, patient
        self.results: list[str] = []  # names of the program's own validation results
        self.latest = 0.0
        self.last_batch: Any = None
        self.program_losses: list[Any] = []  # of every step, where another loss is minimised

    def __enter__(self) -> Self:
        super().__enter__()
        self.patient.attach()
        return self

    def step(self, loss: Any, batch: Any = None) -> None:
        for act in self.patient.at_each_step:
            act(batch)
        minimised = loss
        if self.patient.minimised:
            self.program_losses.append(loss.detach() if torch.is_tensor(loss) else loss)
            minimised = self.patient.minimised(loss)
        with self.patient.showing_rates():
            super().step(minimised, batch)
        self.last_batch = batch if batch is not None else self.last_batch
        self._after_step(loss)

    @property
    def run(self) -> Run:
        """The loss is the one that is minimised, for the diagnosis; the program's own, to compare arms, is kept too."""
        run = super().run
        if self.program_losses:
            own = np.array([as_number(each) for each in self.program_losses])
            run.traces[PROGRAM_LOSS] = own[run["step"]]
        return run

    def validation(self, **results: Any) -> None:
        super().validation(**results)
        self.results = list(dict.fromkeys([*self.results, *results]))
        limits, plain = self.intervention.limits, {name: as_number(each) for name, each in results.items()}
        self.intervention.report({"kind": "validation", "step": self.calls, "results": plain})
        if limits.measure in plain and limits.lost(self.calls, self.patient.steps, limits.sign * plain[limits.measure]):
            self.intervention.stop(LOST)

    def _after_step(self, loss: Any) -> None:
        treated, now = bool(self.intervention.names), time.monotonic()
        if treated and self.hopeless:
            self.intervention.stop("the loss is not finite any more")
        seconds = self.intervention.limits.seconds
        if seconds is not None and now - self.intervention.began > seconds:
            self.intervention.stop("time limit")
        if now - self.latest > SHOWN_EVERY:
            self.latest = now
            self.intervention.report({"kind": "step", "step": self.calls, "loss": as_number(loss)})

    def shown_samples(self) -> list[dict]:
        """Some samples of the probe or of the last batch, with targets and predictions, to be looked at."""
        batch = self.patient.options.get("probe")
        inputs, targets = split_batch(self.last_batch if batch is None else batch)
        x = first_tensor(inputs) if inputs is not None else None
        if x is None or not torch.is_tensor(targets):
            return []
        try:
            with replaying(self.model, self.device), evaluating(self.model):
                outputs = first_tensor(call(self.patient.called, inputs))
        except Exception:  # shown for orientation only: a net that cannot take this batch has other problems
            outputs = None
        rows = range(min(SAMPLES, len(x), len(targets)))
        return [
            {"inputs": in_short(x[row]), "target": in_short(targets[row])}
            | ({"outputs": in_short(outputs[row])} if outputs is not None and row < len(outputs) else {})
            for row in rows
        ]


def as_number(value: Any) -> float:
    try:
        return float(value.detach().float().mean() if torch.is_tensor(value) else value)
    except (TypeError, ValueError):
        return math.nan


def in_short(value: torch.Tensor) -> str:
    """A tensor in a few words: its values where there are few, else shape, range and mean."""
    value = value.detach().cpu()
    if value.numel() <= 6:
        return str([round(each, 3) if isinstance(each, float) else each for each in value.flatten().tolist()])
    flat = value.flatten().double()
    return f"shape {tuple(value.shape)}, {flat.min():.3g} to {flat.max():.3g}, mean {flat.mean():.3g}"
