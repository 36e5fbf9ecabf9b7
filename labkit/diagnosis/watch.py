"""The same instruments around anybody's own loop: two lines, and the run is an ordinary one."""

import contextlib
import sys

import torch
from torch.nn.functional import cross_entropy, mse_loss

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.recording.recorder import Recorder
from labkit.recording.run import Run

# A live diagnosis reads everything that was recorded: seldom enough to cost little, often enough to be early.
FIRST_ALARM, LATEST_ALARM = 8, 256  # steps: after 8, 16, 32 ... 256, then every 256


class Alarm(RuntimeError):
    """Raised by `on_alarm="raise"`: the diagnosis is its `diagnosis`."""

    def __init__(self, diagnosis: Diagnosis):
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


def watch(
    model, optimizer, *, probe=None, loss_fn=None, every: int = 1, on_alarm=None, scaler=None,
    autocast=contextlib.nullcontext,
) -> "Watch":  # fmt: skip
    """Watch a training loop; nothing in it changes.

        with labkit.watch(model, optimizer, probe=(x, y)) as record:
            for x, y in loader:
                ...                      # your own step, ending in optimizer.step()
                record.step(loss, batch=(x, y))
            record.validation(loss=..., accuracy=...)
        print(record.report())

    `probe` is a fixed batch that is looked at again at every validation: with it dead units are seen, and the loss of
    the same samples. `loss_fn` is its loss; by default cross-entropy for whole-number targets, else the mean squared
    error. `every=10` looks at every tenth step. `on_alarm` is "print", "raise" or a function of a `Diagnosis`, called
    once for each cause while you train. `scaler` is your GradScaler, where there is one.
    """
    return Watch(model, optimizer, probe, loss_fn, every, on_alarm, scaler, autocast)


class Watch(Recorder):
    """A Recorder that listens to the optimizer, so that the loop need not know the moment before an update."""

    def __init__(self, model, optimizer, probe, loss_fn, every, on_alarm, scaler, autocast):
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every: expected a whole number at least 1, got {every!r}")
        if not (on_alarm in (None, "print", "raise") or callable(on_alarm)):
            raise ValueError(f"on_alarm: expected 'print', 'raise', a function or None, got {on_alarm!r}")
        self.every, self.on_alarm, self.scaler = every, on_alarm, scaler
        if probe is not None:
            loss_fn = loss_fn or (mse_loss if probe[1].is_floating_point() else cross_entropy)
        net = bare(model)
        super().__init__(net, optimizer, loss=loss_fn, probe=probe, autocast=autocast, called=model)
        if hasattr(model, "_orig_mod"):  # torch.compile: hooks inside are not called
            self.activations.modules = {}
        self.calls = 0
        self.row: torch.Tensor | None = None  # measured before the update, waiting for its loss
        self.alarmed: set[str] = set()
        self.error: dict | None = None
        self.hook = None

    def __enter__(self):
        super().__enter__()
        self.hook = self.optimizer.register_step_pre_hook(self._before_update)
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.hook.remove()
        super().__exit__(kind, error, trace)
        if error is not None:
            self.error = {"kind": kind.__name__, "message": str(error), "step": self.calls}

    @property
    def updates(self) -> int:
        return self.calls

    @property
    def due(self) -> bool:
        return self.calls % self.every == 0

    def _before_update(self, optimizer, args, kwargs):
        """The optimizer is about to step: gradients are ready, weights not yet changed.

        With a closure they are ready when it has run, so that it is the closure that tells.
        """
        if not (self.due and self.row is None):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._take()

        def telling():
            result = closure()
            if self.row is None:  # some optimizers call it more than once
                self._take()
            return result

        return (args[:1], kwargs | {"closure": telling})

    @torch.no_grad()
    def _take(self) -> None:
        self.activations.keep()
        self.row = self.weights.measure(torch.zeros((), device=self.weights.device))

    @torch.no_grad()
    def step(self, loss, batch=None) -> None:
        """Call it after the optimizer's step, with the loss and, where you can, the batch."""
        if self.hook is None:
            words = "this watch was never entered: put `with labkit.watch(model, optimizer) as record:` around the loop"
            raise RuntimeError(words)
        if self.due:
            if self.row is None:  # the optimizer did not step: GradScaler found an overflow and skipped
                self._take()
            x, y = batch if batch is not None else (None, None)
            value = loss if torch.is_tensor(loss) else torch.tensor(float(loss))
            self.ledger.step(value, y)
            row, self.row = self.row, None
            row[0] = value.detach().to(row)
            scale = self.scaler.get_scale() if self.scaler else 1.0
            self._note(row, x, y, scale)
        else:
            self.ledger.passes = []
        self.calls += 1
        if self.on_alarm and self._time_for_alarms():
            self.raise_alarms()

    def validation(self, **results) -> None:
        """Note validation results: `loss=..., accuracy=...`."""
        self.validate(**results)

    def _time_for_alarms(self) -> bool:
        looks = self.steps
        regular = looks >= LATEST_ALARM and looks % LATEST_ALARM == 0
        return regular or (FIRST_ALARM <= looks <= LATEST_ALARM and looks & (looks - 1) == 0) or self.hopeless

    def raise_alarms(self) -> None:
        """Tell of every failure that was not told of before."""
        for found in self.diagnose():
            if found.name in self.alarmed:
                continue
            self.alarmed.add(found.name)
            if self.on_alarm == "raise":
                raise Alarm(found)
            if self.on_alarm == "print":
                print(f"labkit, step {self.calls}: {found}", file=sys.stderr)
            else:
                self.on_alarm(found)

    @property
    def run(self) -> Run:
        """All that was recorded so far, as an ordinary run."""
        run = super().run(None, **self._own_facts())
        run.traces["step"] = run.traces["step"] * self.every
        return run

    def _own_facts(self) -> dict:
        """What is known of a loop that is not ours; what is not known is not there."""
        labels = self.ledger.labels
        classes = max((int(each.max()) for each in labels[:50]), default=-1) + 1
        return {
            **({"classes": classes} if classes else {}),
            "every": self.every,
            "stopped": None,
            "error": self.error,
            "device": self.weights.device.type,
            "torch": torch.__version__,
        }

    def diagnose(self) -> list[Diagnosis]:
        """The failures that show so far, causes before consequences."""
        return diagnose(self.run)

    def report(self) -> str:
        """The whole exam in words: trend, gradients, updates, units, validation, and the diagnosis."""
        from labkit.diagnosis.report import exam

        return exam(self.run)


def bare(model):
    """The net itself, inside torch.compile's and DistributedDataParallel's wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (
            model.module if type(model).__name__ in ("DistributedDataParallel", "DataParallel") else None
        )
        if inner is None:
            return model
        model = inner
