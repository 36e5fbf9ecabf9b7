"""What a base program is made of. A fault operator changes these pieces before training starts."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

PROBE = 96  # training samples of the fixed batch that `watch` examines
PER_STEP = ("linear decay", "one cycle", "warmup and cosine")  # schedules whose loops call `end_step`


@dataclass(frozen=True)
class Settings:
    """What a healthy variant of a program may change."""

    optimizer: str
    lr: float
    width: int
    batch_size: int
    schedule: str
    epochs: int


@dataclass
class Setup:
    """The pieces of one training program, in the state just before its loop starts."""

    kind: str  # of the targets: regression, binary, classes, multilabel, tokens, pixels, reconstruction, ...
    settings: Settings
    seed: int
    model: nn.Module
    optimizer: Any  # a torch optimizer, or a list of them
    train: list[Tensor]  # the inputs, and the targets last
    val: list[Tensor]
    loss: Callable[[Any, Tensor], Tensor]  # of outputs and targets
    measure: Callable[[Any, Tensor], float]  # of outputs and targets: 1 is perfect. No operator changes it
    metric: str = "accuracy"  # the name under which the loop records it
    floor: float = 0.0  # the measure of the best constant prediction
    class_axis: int = -1  # of the outputs, where there are classes
    batch_size: int = field(init=False)
    epochs: int = field(init=False)
    per_epoch: int = field(init=False)
    scheduler: Any = None  # stepped once per epoch, or after each step if the schedule is in PER_STEP
    shuffle: bool = True
    reached: float = math.nan  # the measure at the last validation
    in_use: Callable[[], float] | None = None  # the measure on new data, where a leak makes the validation wrong

    def __post_init__(self) -> None:
        self.batch_size, self.epochs = self.settings.batch_size, self.settings.epochs
        self.per_epoch = max(1, len(self.train[-1]) // self.batch_size)
        self.scheduler = scheduler_for(self.optimizers[0], self.settings, self.epochs * self.per_epoch)
        self._stream: Iterator[tuple[Tensor, ...]] | None = None

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]

    @property
    def probe(self) -> tuple[Tensor, ...]:
        return tuple(each[:PROBE] for each in self.train)

    @property
    def score(self) -> float:
        """0 for the best constant prediction, 1 for perfect ones."""
        return (self.reached - self.floor) / (1 - self.floor)

    def epoch(self) -> Iterator[tuple[Tensor, ...]]:
        """The batches of one epoch, shuffled; inputs first, the targets last."""
        self._stream = self._stream or self._batches()
        for _ in range(self.per_epoch):
            yield next(self._stream)

    def _batches(self) -> Iterator[tuple[Tensor, ...]]:
        chance = torch.Generator().manual_seed(self.seed)
        while True:
            count = len(self.train[-1])
            order = torch.randperm(count, generator=chance) if self.shuffle else torch.arange(count)
            size = min(self.batch_size, count)
            for start in range(0, count - size + 1, size):
                chosen = order[start : start + size]
                yield tuple(each[chosen] for each in self.train)

    def evaluate(self) -> Tensor:
        """Evaluate on the validation data, in eval mode; returns the loss."""
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(*self.val[:-1])
            loss = self.loss(outputs, self.val[-1])
            self.reached = self.measure(outputs, self.val[-1])
        self.model.train()
        return loss

    def measured_on(self, data: list[Tensor]) -> float:
        """The measure on other data than those of the validation, in eval mode."""
        self.model.eval()
        with torch.no_grad():
            return self.measure(self.model(*data[:-1]), data[-1])

    def validate(self, record: Any) -> None:
        """Evaluate, and record loss and measure."""
        loss = self.evaluate()
        record.validation(loss=loss, **{self.metric: self.reached})

    def end_step(self) -> None:
        """For loops with a schedule that changes the learning rate after each step."""
        if self.scheduler and self.settings.schedule in PER_STEP:
            self.scheduler.step()

    def end_epoch(self) -> None:
        if self.scheduler and self.settings.schedule not in PER_STEP:
            self.scheduler.step()


def plain_loop(s: Setup, watch: Callable) -> None:
    """The loop that most people write; programs with another style have their own."""
    with watch(s.model, s.optimizer, probe=s.probe, loss_fn=s.loss) as record:
        for _ in range(s.epochs):
            s.model.train()
            for *x, y in s.epoch():
                s.optimizer.zero_grad()
                loss = s.loss(s.model(*x), y)
                loss.backward()
                s.optimizer.step()
                record.step(loss, batch=(*x, y))
            s.validate(record)
            s.end_epoch()


@dataclass(frozen=True)
class Program:
    """One base program: how it is built, how it trains, and within which settings it is healthy.

    The first optimizer, learning rate, width, batch size and schedule are its own; the others make healthy variants.
    """

    name: str
    task: str
    build: Callable[[int, Settings], Setup]
    optimizers: dict[str, tuple[float, ...]]  # learning rates per optimizer
    widths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    schedules: tuple[str, ...]
    epochs: int
    enough: float  # the score from which it has learned
    loop: Callable[[Setup, Callable], None]

    @property
    def settings(self) -> Settings:
        optimizer, lrs = next(iter(self.optimizers.items()))
        return Settings(optimizer, lrs[0], self.widths[0], self.batch_sizes[0], self.schedules[0], self.epochs)

    def prepared(self, seed: int, settings: Settings | None = None) -> Setup:
        """Everything that exists before the loop starts."""
        torch.manual_seed(seed)
        return self.build(seed, settings or self.settings)

    def __call__(
        self,
        watch: Callable,
        seed: int,
        fault: Callable[[Setup], object] | None = None,
        settings: Settings | None = None,
    ) -> float:
        """Train under `watch`, with a fault if one is given; returns the score at the end."""
        with torch.random.fork_rng(devices=[]):
            setup = self.prepared(seed, settings)
            if fault:
                fault(setup)
            self.loop(setup, watch)
            if setup.in_use:
                setup.reached = setup.in_use()
        return setup.score


def program(
    task: str,
    optimizers: dict[str, tuple[float, ...]],
    widths: tuple[int, ...],
    batch_sizes: tuple[int, ...],
    epochs: int,
    enough: float,
    schedules: tuple[str, ...] = ("constant", "cosine", "exponential", "warmup"),
    loop: Callable[[Setup, Callable], None] = plain_loop,
) -> Callable[[Callable[[int, Settings], Setup]], Program]:
    """Make a Program of the function that builds it; the program has the function's name."""

    def made(build: Callable[[int, Settings], Setup]) -> Program:
        name = build.__name__
        return Program(name, task, build, optimizers, widths, batch_sizes, schedules, epochs, enough, loop)

    return made


def unwatched(*_: Any, **__: Any) -> contextlib.AbstractContextManager:
    """In the place of `watch`, to train without instruments."""
    return contextlib.nullcontext(_Nothing())


class _Nothing:
    def step(self, *_: Any, **__: Any) -> None:
        pass

    def validation(self, **_: Any) -> None:
        pass


# --- what programs share ----------------------------------------------------------------------------


def optimizer_for(parameters: Any, settings: Settings, **changes: Any) -> torch.optim.Optimizer:
    settings = replace(settings, **changes)
    makers: dict[str, Callable] = {
        "adam": torch.optim.Adam,
        "adamw": lambda weights, lr: torch.optim.AdamW(weights, lr=lr, weight_decay=0.01),
        "rmsprop": torch.optim.RMSprop,
        "nadam": torch.optim.NAdam,
        "radam": torch.optim.RAdam,
        "adagrad": torch.optim.Adagrad,
        "adamax": torch.optim.Adamax,
        "sgd": lambda weights, lr: torch.optim.SGD(weights, lr=lr),
        "momentum": lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9),
        "nesterov": lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9, nesterov=True),
    }
    return makers[settings.optimizer]([each for each in parameters if each.requires_grad], lr=settings.lr)


def scheduler_for(optimizer: torch.optim.Optimizer, settings: Settings, steps: int) -> Any:
    schedulers = torch.optim.lr_scheduler
    if settings.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, settings.epochs, eta_min=settings.lr / 20)
    if settings.schedule == "exponential":
        return schedulers.ExponentialLR(optimizer, 0.93)
    if settings.schedule == "warmup":
        return schedulers.LinearLR(optimizer, 0.3, total_iters=2)
    if settings.schedule == "restarts":
        return schedulers.CosineAnnealingWarmRestarts(optimizer, max(2, settings.epochs // 3), eta_min=settings.lr / 20)
    if settings.schedule == "halved":
        return schedulers.MultiStepLR(optimizer, [settings.epochs // 2, settings.epochs * 3 // 4], gamma=0.5)
    if settings.schedule == "linear decay":  # after a short warm-up, as transformers have it
        first = max(1, steps // 20)
        return schedulers.LambdaLR(optimizer, lambda at: min((at + 1) / first, max(0.05, 1 - at / steps)))
    if settings.schedule in RISING:
        return schedulers.LambdaLR(optimizer, lambda at: risen_and_fallen(at / steps, RISING[settings.schedule]))
    return None


RISING = {"one cycle": 0.3, "warmup and cosine": 0.08}  # the share of the steps in which the learning rate rises


def risen_and_fallen(done: float, rising: float) -> float:
    """The share of the full learning rate: up in a line, then down as a cosine."""
    if done < rising:
        return 0.05 + 0.95 * done / rising
    return 0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, (done - rising) / (1 - rising))))


def generator(seed: int) -> torch.Generator:
    """For the data: not the random numbers of the weights."""
    return torch.Generator().manual_seed(7919 * seed + 17)


def split_off(count: int, *tensors: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """(training data, validation data): the last `count` samples validate."""
    return [each[:-count] for each in tensors], [each[-count:] for each in tensors]


def accuracy(outputs: Any, targets: Tensor) -> float:
    """Of classes in the last axis of the outputs; targets of -100 do not count."""
    counted = targets != -100
    return (outputs.argmax(-1) == targets)[counted].float().mean().item()


def binary_accuracy(outputs: Any, targets: Tensor) -> float:
    """Of logits; or, where all outputs are between 0 and 1, of probabilities."""
    threshold = 0.5 if outputs.min() >= 0 and outputs.max() <= 1 else 0.0
    return ((outputs.reshape(targets.shape) > threshold) == (targets > 0.5)).float().mean().item()


def r2(outputs: Any, targets: Tensor) -> float:
    """The explained share of the variance, at least -1."""
    missed = (outputs.reshape(targets.shape) - targets).pow(2).mean() / targets.var(0, correction=0).mean()
    return max(-1.0, 1 - missed.item()) if missed.isfinite() else math.nan


def most_frequent(targets: Tensor) -> float:
    """The accuracy of always predicting the most frequent class."""
    counted = targets[targets != -100].long()
    return (counted.bincount().max() / len(counted)).item()
