"""The same instruments around any PyTorch training loop: two lines, and what they record is an ordinary run."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.recording.recorder import FULL_EVERY, Recorder
from labkit.recording.run import Run
from labkit.training.loop import error_facts
from labkit.training.state import current_scale

# A live diagnosis reads everything recorded so far: rarely enough to cost little, often enough to be early.
FIRST_ALARM, LATEST_ALARM = 8, 256  # steps: after 8, 16, 32 ... 256, then every 256


class Alarm(RuntimeError):
    """Raised by `on_alarm="raise"`; its attribute `diagnosis` says which failure was found."""

    def __init__(self, diagnosis: Diagnosis):
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


Batch = Sequence[Any]  # inputs and targets
LossFunction = Callable[[Any, Any], Tensor]  # of outputs and targets
OnAlarm = str | Callable[[Diagnosis], object]  # "print", "raise" or a function


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    probe: Batch | None = None,
    loss_fn: LossFunction | None = None,
    every: int = 1,
    full_every: int = FULL_EVERY,
    on_alarm: OnAlarm | None = None,
    scaler: torch.amp.GradScaler | None = None,
    autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> "Watch":
    """Watch a training loop, without changing anything in it.

        with labkit.watch(model, optimizer, probe=(x, y)) as record:
            for x, y in loader:
                ...                      # your own step, ending in optimizer.step()
                record.step(loss, batch=(x, y))
            record.validation(loss=..., accuracy=...)
        print(record.report())

    `probe` is a fixed batch (inputs, targets) that is examined at every validation, to find dead units and to follow
    the loss of the same samples. `loss_fn` is its loss; by default cross-entropy for integer targets, else the mean
    squared error. `every=10` measures every tenth step. Losses, norms and means are taken at each measured step;
    activations, extremes and near-zero shares at the first 50 of them, after jumps, and at every eighth, or at all with
    `full_every=1`. `on_alarm` is "print", "raise" or a function of a `Diagnosis`;
    it is called once for each failure found while you train. `scaler` is your GradScaler and `autocast` your autocast
    context (`lambda: torch.autocast("cuda")`), if you train in mixed precision.
    """
    return Watch(model, optimizer, probe, loss_fn, every, full_every, on_alarm, scaler, autocast)


class Watch(Recorder):
    """A Recorder that hooks into the optimizer, so that it measures just before each update."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        probe: Batch | None,
        loss_fn: LossFunction | None,
        every: int,
        full_every: int,
        on_alarm: OnAlarm | None,
        scaler: torch.amp.GradScaler | None,
        autocast: Callable[[], contextlib.AbstractContextManager],
    ):
        for name, value in {"every": every, "full_every": full_every}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number at least 1, got {value!r}")
        if not (on_alarm in (None, "print", "raise") or callable(on_alarm)):
            raise ValueError(f"on_alarm: expected 'print', 'raise', a function or None, got {on_alarm!r}")
        self.every, self.on_alarm, self.scaler = every, on_alarm, scaler
        if probe is not None:
            loss_fn = loss_fn or (mse_loss if probe[1].is_floating_point() else cross_entropy)
        net = bare(model)
        options: dict[str, Any] = {"loss": loss_fn, "probe": probe, "autocast": autocast, "full_every": full_every}
        super().__init__(net, optimizer, called=model, **options)
        if hasattr(model, "_orig_mod"):  # torch.compile: hooks on inner modules are not called
            self.activations.modules = {}
            if self.probe:
                self.probe.activations = {}  # its traces have the same columns
        self.calls = 0
        self.held: float | Tensor | None = None  # what the weight meter held before the update, until the loss is known
        self.alarmed: set[str] = set()
        self.error: dict | None = None
        self.hook: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        self.hook = self.optimizer.register_step_pre_hook(self._before_update)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hook.remove()
        super().__exit__(kind, error, trace)
        if error is not None:
            self.error = error_facts(error, self.calls)

    @property
    def updates(self) -> int:
        """How many updates the weights have seen."""
        return self.calls

    @property
    def due(self) -> bool:
        """Whether the current step is measured."""
        return self.calls % self.every == 0

    def _before_update(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """The optimizer is about to step: gradients are ready, weights not yet changed.

        With a closure the gradients are ready once it has run, so we measure at its end.
        """
        if not (self.due and self.held is None):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._hold()
            return None

        def measured_closure() -> Any:
            result = closure()
            if self.held is None:  # some optimizers call it more than once
                self._hold()
            return result

        return args[:1], kwargs | {"closure": measured_closure}

    @torch.no_grad()
    def _hold(self) -> None:
        self.held = self.weights.hold(self._keep_activations())

    @torch.no_grad()
    def step(self, loss: Tensor | float, batch: Batch | None = None) -> None:
        """Call it after the optimizer's step, with the loss and, if you can, the batch (inputs, targets)."""
        if self.hook is None:
            words = "this watch was never entered: put `with labkit.watch(model, optimizer) as record:` around the loop"
            raise RuntimeError(words)
        if self.due:
            if self.held is None:  # the optimizer did not step: GradScaler found an overflow and skipped
                self._hold()
            x, y = batch if batch is not None else (None, None)
            value = loss if isinstance(loss, Tensor) else torch.tensor(float(loss))
            self.samples.step(value, y)
            row, self.held = self.weights.row(value, self.held), None
            scale = current_scale(self.scaler) if self.scaler else 1.0
            self._note(row, x, y, scale)
        else:
            self.samples.passes = []
        self.calls += 1
        if self.on_alarm and self._time_for_alarms():
            self.raise_alarms()

    def _compare(self, step: int, row: Any) -> None:
        """After a jump the next steps are measured in full, not this one: the loop may have zeroed its gradients."""
        self.full.jumped(step, *row, taken=self.steps)

    def validation(self, **results: Tensor | float) -> None:
        """Record validation results: `loss=..., accuracy=...`."""
        self.validate(**results)

    def _time_for_alarms(self) -> bool:
        looks = self.steps
        regular = looks >= LATEST_ALARM and looks % LATEST_ALARM == 0
        return regular or (FIRST_ALARM <= looks <= LATEST_ALARM and looks & (looks - 1) == 0) or self.hopeless

    def raise_alarms(self) -> None:
        """Report every failure that was not reported before."""
        for found in self.diagnose():
            if found.name in self.alarmed:
                continue
            self.alarmed.add(found.name)
            if self.on_alarm == "raise":
                raise Alarm(found)
            if self.on_alarm == "print":
                print(f"labkit, step {self.calls}: {found}", file=sys.stderr)
            elif callable(self.on_alarm):
                self.on_alarm(found)

    @property
    def run(self) -> Run:
        """Everything recorded so far, as an ordinary run."""
        run = self.as_run(None, **self._own_facts())
        run.traces["step"] = run.traces["step"] * self.every
        return run

    def _own_facts(self) -> dict:
        """What can be known about a loop that is not labkit's; the rest is left out."""
        classes = self.samples.classes()
        return {
            **({"classes": classes} if classes else {}),
            "every": self.every,
            "stopped": None,
            "error": self.error,
            "device": self.weights.device.type,
            "torch": torch.__version__,
        }

    def diagnose(self) -> list[Diagnosis]:
        """The failures found so far, causes before consequences."""
        return diagnose(self.run)

    def report(self) -> str:
        """A full report in words: trend, gradients, updates, units, validation, and the diagnosis."""
        from labkit.diagnosis.report import exam

        return exam(self.run)


def bare(model: nn.Module) -> nn.Module:
    """The net itself, without the wrappers of torch.compile and DistributedDataParallel."""
    inner: Any = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model.module
    return model if inner is None else bare(inner)
