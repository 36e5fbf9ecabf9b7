"""The same instruments around any PyTorch training loop: two lines, and what they record is an ordinary run."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
    nll_loss,
)

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.recording.guard import Guard
from labkit.recording.meters import Probe, WeightMeter
from labkit.recording.nan_hunt import in_forward, in_gradients, in_loss
from labkit.recording.nested import copied, first_tensor, split_batch, tensors, with_tensors
from labkit.recording.recorder import FULL_EVERY, ORIGIN, PROBE, SAMPLES, Recorder, in_single_precision
from labkit.recording.run import Run
from labkit.recording.undisturbed import replaying
from labkit.training.loop import error_facts
from labkit.training.state import current_scale

# A live diagnosis reads everything recorded so far: rarely enough to cost little, often enough to be early.
FIRST_ALARM, LATEST_ALARM = 8, 256  # steps: after 8, 16, 32 ... 256, then every 256
# A first batch that becomes the probe: its samples, fewer tell too little and more cost time; and how far its loss may
# be from the one recorded: rounding gives 1e-6, another loss differs by 1e-2 and more.
FEWEST, MOST_SAMPLES, SAME_LOSS = 8, 512, 1e-4
MOST_ENTRIES = 2**25  # numbers of the first batch and its outputs that are kept until the first validation: 128 MB


class Alarm(RuntimeError):
    """Raised by `on_alarm="raise"`; its attribute `diagnosis` says which failure was found."""

    def __init__(self, diagnosis: Diagnosis):
        super().__init__(str(diagnosis))
        self.diagnosis = diagnosis


IGNORED = -100  # the class that PyTorch's cross-entropy leaves out
Batch = Any  # inputs and targets: a pair, a dictionary, several inputs and the targets, or inputs alone
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
LossFunction = Callable[[Any, Any], Tensor]  # of outputs and targets
OnAlarm = str | Callable[[Diagnosis], object]  # "print", "raise" or a function


def watch(
    model: nn.Module,
    optimizer: Optimizers,
    *,
    probe: Batch | None = None,
    loss_fn: LossFunction | None = None,
    every: int = 1,
    full_every: int = FULL_EVERY,
    on_alarm: OnAlarm | None = None,
    scaler: torch.amp.GradScaler | None = None,
    autocast: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    strict: bool = False,
) -> "Watch":
    """Watch a training loop, without changing anything in it.

        with labkit.watch(model, optimizer, probe=(x, y)) as record:
            for x, y in loader:
                ...                      # your own step, ending in optimizer.step()
                record.step(loss, batch=(x, y))
            record.validation(loss=..., accuracy=...)
        print(record.report())

    A batch is a pair (inputs, targets), a dictionary with an entry such as `labels`, or several inputs and the targets.
    `probe` is a fixed batch that is examined at every validation (without any: once, at the end), to find dead units
    and to follow the loss of the same samples. `loss_fn(outputs, targets)` is its loss; by default the one of the usual
    losses that gives, for the outputs of the first batch, what you record. Where none does, it is cross-entropy for
    integer targets, and the probe has no loss for others. Without a probe the first batch becomes it, if one of the
    usual losses does.
    Several optimizers are given as a list; gradients are then measured when the last of them steps.
    An instrument that fails on your net is switched off, says so in one line, and your training goes on; with
    `strict=True` it raises.

    `every=10` measures every tenth step. Losses, norms and means are taken at each measured step; activations, extremes
    and near-zero shares at the first 50 of them, after jumps, and at every 16th, or at all with `full_every=1`.
    `on_alarm` is "print", "raise" or a function of a `Diagnosis`; it is called once for each failure found while you
    train. `scaler` is your GradScaler and `autocast` your autocast context (`lambda: torch.autocast("cuda")`), if you
    train in mixed precision.
    """
    return Watch(model, optimizer, probe, loss_fn, every, full_every, on_alarm, scaler, autocast, strict)


class Watch(Recorder):
    """A Recorder that hooks into the optimizer, so that it measures just before each update."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizers,
        probe: Batch | None,
        loss_fn: LossFunction | None,
        every: int,
        full_every: int,
        on_alarm: OnAlarm | None,
        scaler: torch.amp.GradScaler | None,
        autocast: Callable[[], contextlib.AbstractContextManager],
        strict: bool,
    ):
        for name, value in {"every": every, "full_every": full_every}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number at least 1, got {value!r}")
        if not (on_alarm in (None, "print", "raise") or callable(on_alarm)):
            raise ValueError(f"on_alarm: expected 'print', 'raise', a function or None, got {on_alarm!r}")
        self.every, self.on_alarm, self.scaler, self.strict = every, on_alarm, scaler, strict
        self.calls = 0
        self.guesses = loss_fn is None
        options: dict[str, Any] = {"autocast": autocast, "full_every": full_every, "guard": Guard(strict)}
        options |= {"loss": loss_fn or usual_loss, "probe": None if probe is None else split_batch(probe)}
        super().__init__(bare(model), optimizer, called=model, **options)
        if hasattr(model, "_orig_mod"):  # torch.compile: hooks on inner modules are not called
            self.activations.modules = {}
            if self.probe:
                self.probe.activations = {}  # its traces have the same columns
        self.before_update: tuple[dict | None, Any, dict | None] | None = None  # of a step with non-finite gradients
        self.loss_was_finite, self.was_hopeless = True, False
        self.held: float | Tensor | None = None  # what the weight meter held before the update, until the loss is known
        self.alarmed: set[str] = set()
        self.error: dict | None = None
        self.hook: Any = None
        # What the net was called with at the first step, the targets, what it returned and the loss; until it is known
        # which loss that is.
        self.first_batch: tuple[Any, Tensor, Any, Tensor] | None = None
        self.unsettled = self.guesses and self.probe is not None

    def __enter__(self) -> Self:
        super().__enter__()
        last = self.optimizers[-1]
        last = last if hasattr(last, "register_step_pre_hook") else getattr(last, "optimizer", last)  # a wrapper's own
        self.hook = last.register_step_pre_hook(self._before_update)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hook.remove()
        if self.unsettled or (self.first_batch and not self.evaluations):
            self._try(PROBE, self._settle_probe)
        if self.probe and self.calls and not self.evaluations and kind is None:
            self.validate()  # a loop without validation: the probe is examined once, at the end
            self.evaluations[-1].pop("probe_loss", None)  # one value is no curve: the training loss is one
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
            self._hold_now()
            return None

        def measured_closure() -> Any:
            result = closure()
            if self.held is None:  # some optimizers call it more than once
                self._hold_now()
            return result

        return args[:1], kwargs | {"closure": measured_closure}

    @torch.no_grad()
    def _hold_now(self) -> None:
        self.held = self._hold()
        if isinstance(self.held, float) and not math.isfinite(self.held) and self.first_nonfinite is None:
            # Now, because the update will turn the weights into NaN as well.
            self.before_update = self._try(ORIGIN, self._hunt_before_update)

    def _hunt_before_update(self) -> tuple[dict | None, Any, dict | None]:
        """What is not finite up to the outputs, the outputs, and the first gradient that is not finite."""
        with self.samples.not_listening():
            found, outputs = in_forward(self.model, self.samples.latest, self.autocast)
        return found, outputs, in_gradients(self.model)

    def _find_origin(self, x: Any, y: Any) -> dict | None:
        if self.before_update is None:
            return super()._find_origin(x, y)
        found, outputs, gradients = self.before_update
        if found:
            return found
        in_this_loss = in_loss(outputs, y, self.loss, self.autocast)
        if in_this_loss and in_this_loss["stage"] == "loss" and self.loss_was_finite:
            return gradients  # it is NaN only now, after the update: a term of the loss reads the weights
        return in_this_loss or gradients

    @torch.no_grad()
    def step(self, loss: Tensor | float, batch: Batch | None = None) -> None:
        """Call it after the optimizer's step, with the loss and, if you can, the batch (inputs, targets)."""
        if self.hook is None:
            words = "this watch was never entered: put `with labkit.watch(model, optimizer) as record:` around the loop"
            raise RuntimeError(words)
        value, due = as_loss(loss), self.due
        if due:
            # Where nothing is held the optimizer did not step: GradScaler found an overflow and skipped.
            norm = self._hold() if self.held is None else self.held
            x, y = split_batch(batch)
            self._try(SAMPLES, lambda: self.samples.step(value, y))
            if self.calls == 0 and (self.probe is None or self.unsettled):
                self.first_batch = self._try(PROBE, lambda: self._keep_first_batch(value, y))
            self.samples.latest_answer = None
            self.loss_was_finite = self.before_update is None or bool(value.isfinite())
            row, self.held = WeightMeter.row(value, norm), None
            scale = current_scale(self.scaler) if self.scaler else 1.0
            self._note(row, x, y, scale)
            self.before_update = None
        else:
            self.samples.passes = []
        self.calls += 1
        if self.on_alarm and due and self._time_for_alarms():
            self.raise_alarms()

    def _keep_first_batch(self, loss: Tensor, y: Any) -> tuple[Any, Tensor, Any, Tensor] | None:
        """Copies, because the loop may go on in the same memory; the comparison waits, because it synchronises."""
        answer, given = self.samples.latest_answer, self.samples.latest
        outputs = first_tensor(answer)
        if outputs is None or given is None:
            return None
        if y is None:  # the net computes the loss
            y = split_batch(given.named)[1] if given.named else split_batch(given.positional)[1]
        if not torch.is_tensor(y) or not y.ndim:
            return None
        x: Any = None  # of a probe that was given only the loss is looked for
        if self.probe is None:
            x = given.positional[0] if len(given.positional) == 1 and not given.named else given
        kept = x, outputs if self.guesses else answer
        entries = sum(each.numel() for each in tensors(kept))
        if entries > MOST_ENTRIES or (self.probe is None and len(y) > MOST_SAMPLES):
            return None
        x, answer = copied(kept)
        return x, y.to(outputs.device, copy=True), answer, loss.detach().clone()

    def _settle_probe(self) -> None:
        """Before the probe is examined: which loss does the loop record? Without a probe its first batch becomes it."""
        recorded, self.first_batch, asked, self.unsettled = self.first_batch, None, self.unsettled, False
        found, shifted = None, False
        if recorded:
            x, y, answer, loss = recorded
            with replaying(self.model, self.device), self.autocast():  # a loss may draw random numbers
                found, shifted = recorded_loss(USUAL_LOSSES if self.guesses else (self.loss,), answer, y, float(loss))
        if asked:
            assert self.probe
            self.loss = self.probe.loss = found or (usual_loss if names_classes(self.probe.y) else None)
            self.probe.loss_is_known = found is not None
            self.probe.y = next_tokens(self.probe.y) if shifted else self.probe.y
        elif recorded and found and len(y) >= FEWEST:
            self.loss = found
            self.probe = Probe(self.model, found, x, next_tokens(y) if shifted else y, self.autocast, self.guard)

    def _compare(self, step: int, row: Any) -> None:
        """After a jump the next steps are measured in full, not this one: the loop may have zeroed its gradients."""
        if self.full.jumped(step, *row, taken=self.steps):
            self.past.notable.append(step)

    def validation(self, **results: Tensor | float) -> None:
        """Record validation results: `loss=..., accuracy=...`."""
        if self.first_batch or self.unsettled:
            self._try(PROBE, self._settle_probe)
        self.validate(**{name: as_result(name, each) for name, each in results.items()})

    def _time_for_alarms(self) -> bool:
        looks = self.steps
        regular = looks >= LATEST_ALARM and looks % LATEST_ALARM == 0
        lost, self.was_hopeless = self.hopeless and not self.was_hopeless, self.hopeless  # when that begins
        return regular or (FIRST_ALARM <= looks <= LATEST_ALARM and looks & (looks - 1) == 0) or lost

    def raise_alarms(self) -> None:
        """Report every failure that was not reported before."""
        for found in self._try("the live diagnosis", self.diagnose) or []:
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
        if "thinned" in run.facts:
            run.facts["thinned"] = {name: self.every * value for name, value in run.facts["thinned"].items()}
        if origin := run.facts["first_nonfinite"]:
            run.facts["first_nonfinite"] = self._counting_all_steps(origin)
        return dataclasses.replace(run, events=tuple(map(self._counting_all_steps, run.events)))

    def _counting_all_steps(self, event: dict) -> dict:
        """The same event, with its step counted as the loop does and not among the measured ones."""
        return event | {"step": self.every * event["step"]}

    def _own_facts(self) -> dict:
        """What can be known about a loop that is not labkit's; the rest is left out."""
        classes = self._try(SAMPLES, self.samples.classes)
        return {
            **({"classes": classes} if classes else {}),
            "every": self.every,
            "stopped": None,
            "error": self.error,
            "device": self.device.type,
            "torch": torch.__version__,
        }

    def diagnose(self) -> list[Diagnosis]:
        """The failures found so far, causes before consequences."""
        return diagnose(self.run, strict=self.strict)

    def report(self) -> str:
        """A full report in words: trend, gradients, updates, units, validation, and the diagnosis."""
        from labkit.diagnosis.report import exam

        return exam(self.run, strict=self.strict)


def as_loss(loss: Any) -> Tensor:
    """The loss of a step as a tensor with one entry: of one value per sample, the mean."""
    if isinstance(loss, Tensor):
        return loss if loss.numel() == 1 else loss.detach().float().mean()
    try:
        return torch.tensor(float(loss))
    except (TypeError, ValueError):
        raise TypeError(
            f"record.step(loss): expected a number or a tensor, got {type(loss).__name__}; "
            "call it with the loss that you backpropagate"
        ) from None


def as_result(name: str, value: Any) -> Tensor | float:
    """A validation result as a number or a tensor."""
    if isinstance(value, Tensor):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"record.validation({name}=...): expected a number or a tensor, got {type(value).__name__}"
        ) from None


def usual_loss(outputs: Any, targets: Tensor) -> Tensor:
    """The loss that most people would use for these targets: cross-entropy for classes, else the mean squared error."""
    answer = first_tensor(outputs)
    assert answer is not None, f"the net returned no tensor, but {type(outputs).__name__}"
    if targets.is_floating_point():
        return mse_loss(answer, targets if targets.shape == answer.shape else targets.reshape(answer.shape))
    if targets.shape == answer.shape[:-1] and answer.shape[-1] > 1:  # classes, or tokens: (samples, tokens, words)
        check_classes(targets, answer.shape[-1])
        return cross_entropy(answer.flatten(0, -2), targets.flatten().long())
    if targets.shape == (len(answer), 1) and answer.ndim == 2 and answer.shape[1] > 1:  # classes in a column
        return usual_loss(answer, targets[:, 0])
    if targets.numel() == answer.numel():  # one or several questions of yes or no
        return binary_cross_entropy_with_logits(answer, targets.reshape(answer.shape).to(answer.dtype))
    check_classes(targets, answer.shape[1])
    return cross_entropy(answer, targets.long())  # classes at every pixel: (samples, classes, height, width)


def usual_loss_but_for_minus_one(outputs: Any, targets: Tensor) -> Tensor:
    """What is left out is called -1, as nanoGPT and its kin do."""
    return usual_loss(outputs, torch.where(targets == -1, IGNORED, targets))


def as_numbers(outputs: Any, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs as one tensor, and as many targets in their format."""
    answer = first_tensor(outputs)
    assert answer is not None, f"the net returned no tensor, but {type(outputs).__name__}"
    return answer, targets.reshape(answer.shape).to(answer.dtype)


def yes_or_no(outputs: Any, targets: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(*as_numbers(outputs, targets))


def yes_or_no_of_probabilities(outputs: Any, targets: Tensor) -> Tensor:
    """NaN for what is no probability: with that, a GPU would end the process."""
    answer, truth = as_numbers(outputs, targets)
    fine = ((answer >= 0) & (answer <= 1) & (truth >= 0) & (truth <= 1)).all()
    cost = binary_cross_entropy(answer.nan_to_num(0.0).clamp(0, 1), truth.nan_to_num(0.0).clamp(0, 1))
    return torch.where(fine, cost, math.nan)


def soft_classes(outputs: Any, targets: Tensor) -> Tensor:
    return cross_entropy(*as_numbers(outputs, targets))


def absolute_error(outputs: Any, targets: Tensor) -> Tensor:
    return l1_loss(*as_numbers(outputs, targets))


def smooth_error(outputs: Any, targets: Tensor) -> Tensor:
    return huber_loss(*as_numbers(outputs, targets))


def error_of_every_pair(outputs: Any, targets: Tensor) -> Tensor:
    """The squared error of shapes that broadcast, which is a mistake and nearly always this one: (n, 1) and (n,)."""
    answer = first_tensor(outputs)
    count = len(targets)
    if answer is None or {answer.shape, targets.shape} != {(count, 1), (count,)} or count**2 > MOST_ENTRIES:
        raise ValueError("expected outputs of shape (n, 1) and targets of shape (n,), or the other way round")
    return (answer - targets).square().mean()


def log_likelihood(outputs: Any, targets: Tensor) -> Tensor:
    """Of classes, from the logarithms of their probabilities."""
    answer = first_tensor(outputs)
    assert answer is not None, f"the net returned no tensor, but {type(outputs).__name__}"
    check_classes(targets, answer.shape[1])
    return nll_loss(answer, targets)


def recorded_loss(
    losses: Sequence[LossFunction], answer: Any, targets: Tensor, value: float
) -> tuple[LossFunction | None, bool]:
    """Which of these losses has this value, if any; and whether it does so for the next token's target.

    Language models are called with their tokens as labels too, and shift them inside. Before training their loss is
    nearly the same for any targets, so the nearest counts. Of outputs in 16 bits many take the loss in float32.
    """
    nearest: tuple[float, LossFunction | None, bool] = (math.inf, None, False)
    for shifted, wanted in ((False, targets), (True, next_tokens(targets))):
        for loss in losses if wanted is not None else ():
            for given in (answer, with_tensors(answer, in_single_precision)):
                try:
                    found = float(loss(given, wanted).detach().float().mean())
                except Exception:
                    continue  # another loss, or of other outputs
                off = abs(found - value)
                if off <= SAME_LOSS * max(abs(found), abs(value)) and off < nearest[0]:
                    nearest = off, loss, shifted
    return nearest[1:]


def next_tokens(targets: Any) -> Tensor | None:
    """The target of each place is that of the next one, the last place has none; None for targets of other kinds."""
    if not names_classes(targets) or targets.ndim != 2:
        return None
    return torch.cat([targets[:, 1:], torch.full_like(targets[:, :1], IGNORED)], 1)


def names_classes(targets: Any) -> bool:
    """Whole numbers, for which cross-entropy is nearly always right; of floats the loss cannot be guessed."""
    return torch.is_tensor(targets) and not targets.is_floating_point() and not targets.is_complex()


def check_classes(targets: Tensor, count: int) -> None:
    """On a GPU a class that does not exist would end the process: no error could be caught."""
    counted = targets[targets != IGNORED]
    if counted.numel() and not (int(counted.min()) >= 0 and int(counted.max()) < count):
        raise ValueError(f"expected classes from 0 to {count - 1}, got {int(counted.min())} to {int(counted.max())}")


# Without `loss_fn` the first of these that gives what the loop records.
USUAL_LOSSES: tuple[LossFunction, ...] = (
    usual_loss, usual_loss_but_for_minus_one, yes_or_no, yes_or_no_of_probabilities, log_likelihood, soft_classes,
    absolute_error, smooth_error, error_of_every_pair,
)  # fmt: skip


def bare(model: nn.Module) -> nn.Module:
    """The net itself, without the wrappers of torch.compile and DistributedDataParallel."""
    inner: Any = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model.module
    return model if inner is None else bare(inner)
