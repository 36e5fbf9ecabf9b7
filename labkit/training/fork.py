"""Fork a run: train a recipe up to step k, intervene there, and continue into the counterfactual.

A recipe and its seed determine every step, so the steps before k are trained again instead of restored from a
checkpoint: they are bit-identical, whatever state the parts keep, and sick runs are forked early, where this is quick.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Generator, Tensor, nn

from labkit.errors import RecipeError
from labkit.recording.recorder import FULL_EVERY
from labkit.recording.run import Run
from labkit.training.data import Split
from labkit.training.loop import UNFINISHED, EachStep, Training, clips_values
from labkit.training.memory import memory_errors_in_words
from labkit.training.models import ACTIVATIONS
from labkit.training.recipe import Recipe
from labkit.training.rules import Number
from labkit.training.state import TrainingState

# What can be changed in the middle of training. Everything else is fixed before the first step.
CAN_CHANGE = (
    "lr", "schedule", "warmup", "decay", "schedule_steps", "momentum", "weight_decay", "clip", "clip_by",
    "activation", "dropout", "loss", "step", "evaluate",
)  # fmt: skip
IN_OPTIMIZER = ("momentum", "weight_decay")
RECURRENT = {"tanh": "RNN_TANH", "relu": "RNN_RELU"}


def fork(
    recipe: Recipe,
    *,
    at: int,
    skip: int = 0,
    each_step: EachStep | None = None,
    progress: bool = True,
    errors: str = "raise",
    **changes: Any,
) -> Run:
    """The run of a recipe that is changed before step `at`: `fork(sick, at=20, lr=0.1, clip=1.0)`.

    `changes` are entries of the recipe (CAN_CHANGE); a new `lr` goes through the schedule, `step` fixes a broken loop.
    `skip` batches from step `at` on are left out. Other options are those of `train`. The run's facts
    say under "fork" what was changed; up to step `at` it is the original.
    """
    intervention = Intervention(recipe, at, skip, changes)
    with memory_errors_in_words(recipe):
        training = Training(intervention.recipe)
        intervention.check(training)
        full_every = 1 if clips_values(intervention.after) else FULL_EVERY
        run = training.run(each_step=each_step, progress=progress, errors=errors, full_every=full_every)
    if not intervention.done and run.facts["stopped"] not in UNFINISHED:
        last = max(0, len(run) - 1)
        raise RecipeError(f"at: the run ends after {len(run)} steps ({run.facts['stopped']}); fork at {last} or before")
    run = dataclasses.replace(run, recipe=recipe.summary(), facts=run.facts | {"fork": intervention.as_values()})
    return with_both_thresholds(run, recipe, at) if {"clip", "clip_by"} & set(changes) else run


def with_both_thresholds(run: Run, recipe: Recipe, at: int) -> Run:
    """Which steps were clipped: by the original's threshold before the fork, by the new one after it."""
    before = dataclasses.replace(run, facts=run.facts | {"clip": recipe.clip, "clip_by": recipe.clip_by})
    noted = np.concatenate([before.clipped[:at], run.clipped[at:]])
    return dataclasses.replace(run, traces=run.traces | {"clipped": noted})


class Intervention:
    """A change made before one step of a training, as parts of a recipe that wrap the recipe's own."""

    def __init__(self, recipe: Recipe, at: int, skip: int, changes: dict):
        for name, value, most in (("at", at, recipe.steps - 1), ("skip", skip, float("inf"))):
            if problem := Number(0, most, whole=True).problem(value):
                raise RecipeError(f"{name}: {problem}")
        if recipe.processes > 1:
            raise RecipeError(f"a fork trains in one process, got processes={recipe.processes}; use processes=1")
        after = recipe.but(**changes)  # an unknown name or an invalid value is refused here
        for name in changes:
            if name not in CAN_CHANGE:
                possible = ", ".join(CAN_CHANGE)
                raise RecipeError(f"{name} is fixed before the first step; a fork can change {possible}")
        self.before, self.after, self.at, self.skip = recipe, after, at, skip
        self.changed = {name: getattr(after, name) for name in after.changes_from(recipe)}
        self.now, self.done = 0, False

    @property
    def recipe(self) -> Recipe:
        """The original recipe with this intervention as its parts."""
        return self.before.but(schedule=self.schedule, batches=self.batches, step=self.step)

    def as_values(self) -> dict:
        changes = {name: list(pair) for name, pair in self.after.changes_from(self.before).items()}
        return {"at": self.at, "skip": self.skip, "changes": changes}

    # --- the parts of the recipe ---

    def schedule(self, step: int, _: Recipe) -> float:
        """The loop asks for the learning rate before each step, so the current step is noted here."""
        self.now = step
        recipe = self.after if step >= self.at else self.before
        return recipe.schedule(step, recipe)

    def batches(self, split: Split, recipe: Recipe, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        dealt = self.before.batches(split, recipe, generator)
        return (batch for index, batch in enumerate(dealt) if not self.at <= index < self.at + self.skip)

    def step(self, training: TrainingState, x: Tensor, y: Tensor) -> None:
        if self.now == self.at:
            self.intervene(training)
        (self.after if self.done else self.before).step(training, x, y)

    # --- the change itself ---

    def check(self, training: Training) -> None:
        """Is the change possible for this net and this optimizer? Better refused before training than at step k."""
        if "activation" in self.changed and not _swappable(training.model, self.before.activation):
            name = self.before.activation
            raise RecipeError(f"activation: this net has no {name} layer to swap; change another entry")
        if self.after.activation not in RECURRENT and any(
            isinstance(each, nn.RNN) for each in training.model.modules()
        ):
            raise RecipeError(f"activation: an RNN supports 'relu' or 'tanh', got {self.after.activation!r}")
        for name in IN_OPTIMIZER:
            if name in self.changed and any(name not in group for group in training.optimizer.param_groups):
                raise RecipeError(f"{name}: {type(training.optimizer).__name__} has none; change another entry")
        if self.changed.get("dropout") and not self.before.dropout:
            raise RecipeError("dropout: this net was built without dropout; fork a recipe with dropout above 0")

    def intervene(self, training: TrainingState) -> None:
        self.done = True
        live = {name: value for name, value in self.changed.items() if name not in ("schedule", "step")}
        training.recipe = training.recipe.but(**live)
        for group in training.optimizer.param_groups:
            group.update({name: self.changed[name] for name in IN_OPTIMIZER if name in self.changed})
        if "activation" in self.changed:
            recorder: Any = training.recorder  # a fork always has all instruments
            recorder.activations.settle()  # the activations so far belong to the old function
            for module in _swappable(training.model, self.before.activation):
                swap_activation(module, self.after.activation)
        if "dropout" in self.changed:
            for module in training.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = self.after.dropout


def swap_activation(module: nn.Module, name: str) -> None:
    """Turn an activation into another one in place, so that the hooks of the instruments stay on it."""
    if isinstance(module, nn.RNN):
        module.mode, module.nonlinearity = RECURRENT[name], name
        return
    new = ACTIVATIONS[name]()
    plain = vars(nn.Module())
    module.__class__ = type(new)
    vars(module).update({key: value for key, value in vars(new).items() if key not in plain})


def _swappable(model: nn.Module, activation: str) -> list[nn.Module]:
    kinds = (ACTIVATIONS[activation], nn.RNN)
    return [module for module in model.modules() if type(module) in kinds]
