"""A recipe of the lab as a program for `labkit.treat`: its own loop, with `watch` in the place of the recorder."""

from collections.abc import Callable
from typing import Any

from labkit.diagnosis.watch import Watch
from labkit.training.loop import PROBE, Training
from labkit.training.recipe import Recipe


def as_program(recipe: Recipe) -> Callable[[Callable, int], None]:
    """A function of `watch` and a seed that trains the recipe."""

    def program(watch: Callable, seed: int) -> None:
        training = WatchedTraining(recipe.but(seed=recipe.seed + seed), watch)
        training.run(each_step=lambda recorder: recorder.report(), progress=False, errors="raise")

    return program


class WatchedTraining(Training):
    """The lab's loop, recorded by whatever `watch` returns."""

    def __init__(self, recipe: Recipe, watch: Callable):
        super().__init__(recipe)
        self.watch = watch

    def new_recorder(self, instruments: bool, full_every: int = 1) -> Any:
        x, y = self.data.train
        options: dict[str, Any] = {"probe": (x[:PROBE], y[:PROBE]), "loss_fn": self.recipe.loss}
        if self.scaler.is_enabled():
            options["scaler"] = self.scaler
        return Reporter(self.watch(self.model, self.optimizer, autocast=self.autocast, **options))

    def facts(self, recorder: Any, began: float) -> dict[str, Any]:
        return {}


class Reporter:
    """What the lab's loop calls as its recorder; the step is reported to the watch once it is complete."""

    def __init__(self, record: Watch):
        self.record = record
        self.waiting: tuple[Any, tuple[Any, Any]] | None = None  # loss and batch of the step that is under way

    def __enter__(self) -> "Reporter":
        self.record.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.record.__exit__(*error)

    def look(self, loss: Any, x: Any, y: Any, _: Any) -> None:
        self.waiting = loss.detach(), (x, y)

    def report(self) -> None:
        """After a step of the loop."""
        if self.waiting is not None:
            loss, batch = self.waiting
            self.waiting = None
            self.record.step(loss, batch)

    def validate(self, **results: Any) -> None:
        self.record.validation(**results)

    @property
    def hopeless(self) -> bool:
        return self.record.hopeless

    @property
    def steps(self) -> int:
        return self.record.calls

    def as_run(self, *_: Any, **__: Any) -> Any:
        return self.record.run
