"""Everything one run is made of: parts, which are functions, and knobs, which are plain values."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field
from typing import Any, Self

from labkit.errors import RecipeError, near
from labkit.recording.measure import ACCURACY
from labkit.training import data as datasets
from labkit.training import models, parts
from labkit.training.protocols import (
    BatchesPart,
    DataPart,
    EvaluatePart,
    LossPart,
    ModelPart,
    OptimizerPart,
    Part,
    SchedulePart,
    StepPart,
)
from labkit.training.rules import Flag, Number, OneOf, Rule


def part(default: Callable, known: tuple[Callable, ...], meaning: str) -> Any:
    """An entry of a recipe that is a function; the `known` ones may be given by their names."""
    return field(default=default, metadata={"known": {one.__name__: one for one in known}, "meaning": meaning})


def knob(default: object, rule: Rule, meaning: str) -> Any:
    """An entry of a recipe that is a plain value; `rule` says which values are allowed."""
    return field(default=default, metadata={"rule": rule, "meaning": meaning})


class _EntriesSignature:
    """The signature that `help` and notebooks show: that of the dataclass's `__init__`, not of `Recipe.__new__`."""

    def __get__(self, recipe: object, owner: type) -> inspect.Signature:
        made_by = owner.__init__  # type: ignore[misc]  # of the class, never of an instance
        entries = inspect.signature(made_by).parameters.values()
        return inspect.Signature([*entries][1:])  # without self


POSITIVE = Number(0, above=True)
COUNT = Number(1, whole=True)
DEPTH = Number(1, 10_000, whole=True)  # the deepest nets that anyone has trained; more take minutes to build


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The full description of one training run. The defaults are the healthy baseline of the lab.

    784-128-10 ReLU on the first 10,000 MNIST images reaches 92 to 93 % accuracy in 400 steps of plain SGD, with a loss
    that falls throughout (3 seeds); the same recipe on CIFAR-10 reaches 40 to 42 %.

    A subclass may add entries of its own, made with `part` and `knob`:

        @dataclass(frozen=True, kw_only=True)
        class MyRecipe(Recipe):
            cutmix: float = knob(0.0, Number(0, 1), "probability that a batch is mixed by CutMix")
    """

    # Parts: functions, so that a failure mode can bring its own. A built-in one may be given by its name.
    data: Part[DataPart] = part(datasets.mnist, datasets.DATASETS, "the data set")
    model: Part[ModelPart] = part(
        models.mlp, (models.mlp, models.convnet, models.rnn, models.vit), "the network architecture"
    )
    loss: Part[LossPart] = part(parts.cross_entropy, parts.LOSSES, "the loss function")
    optimizer: Part[OptimizerPart] = part(parts.sgd, parts.OPTIMIZERS, "the optimizer")
    schedule: Part[SchedulePart] = part(parts.constant, parts.SCHEDULES, "the learning rate schedule")
    batches: Part[BatchesPart] = part(parts.shuffled, parts.BATCHES, "how batches are drawn from the training set")
    step: Part[StepPart] = part(parts.plain_step, parts.STEPS, "one training step")
    evaluate: Part[EvaluatePart] = part(
        parts.plain_evaluate, parts.EVALUATIONS, "how the validation metrics are computed"
    )

    # Knobs: plain values, so that a slider or the command line can turn them.
    samples: int = knob(10_000, COUNT, "number of training images; more add under one point of accuracy in 400 steps")
    inputs: str = knob("normalised", OneOf(datasets.INPUTS), "pixel scale: mean 0 and std 1, 0 to 1, or 0 to 255")
    targets: str = knob(
        "classes", OneOf(datasets.TARGETS), "labels as classes, as numbers with mean 0 and std 1, or as thousands"
    )
    label_noise: float = knob(0.0, Number(0, 1), "fraction of training labels replaced by a wrong one")
    augment: str = knob("none", OneOf(datasets.AUGMENTATIONS), "data augmentation of the training images")

    width: int = knob(128, COUNT, "units per hidden layer; channels of the first convolution")
    depth: int = knob(2, DEPTH, "number of layers with weights (of blocks, for a transformer)")
    activation: str = knob("relu", OneOf(tuple(models.ACTIVATIONS)), "the activation function")
    init: str = knob("default", OneOf(models.INITS), "weight initialisation; 'default' is PyTorch's own")
    init_scale: float = knob(1.0, Number(0), "factor on the initial weights (for 'normal', their standard deviation)")
    normalisation: str = knob("none", OneOf(models.NORMALISATIONS), "normalisation between a layer and its activation")
    residual: bool = knob(False, Flag(), "skip connections around hidden layers")
    dropout: float = knob(0.0, Number(0, 0.99), "probability that a hidden unit is dropped in training")
    heads: int = knob(2, COUNT, "number of attention heads of a transformer")

    lr: float = knob(0.1, POSITIVE, "learning rate; the peak, if there is a schedule")
    momentum: float = knob(0.0, Number(0, 0.999), "momentum of SGD; Adam has its own")
    weight_decay: float = knob(0.0, Number(0), "weight decay: L2 penalty on the weights, or decoupled with adamw")
    adam_eps: float = knob(1e-8, POSITIVE, "epsilon of Adam, which avoids a division by 0")
    warmup: int = knob(
        40, Number(0, whole=True), "warm-up steps with a rising learning rate; a tenth of the standard run"
    )
    decay: float = knob(0.9, Number(0, 1, above=True), "factor per epoch of the exponential schedule")
    schedule_steps: int | None = knob(
        None, Number(1, whole=True, optional=True), "number of steps the schedule is made for; None: all"
    )
    clip: float | None = knob(
        None, Number(0, above=True, optional=True), "gradient clipping threshold; None: no clipping"
    )
    clip_by: str = knob("norm", OneOf(("norm", "value")), "clip the global gradient norm, or each value")

    batch_size: int = knob(128, COUNT, "images per step; at lr 0.1 fewer than 8 are too noisy")
    steps: int = knob(400, COUNT, "number of training steps; 400 are five epochs of the standard set")
    precision: str = knob(
        "fp32",
        OneOf(("fp32", "bf16", "fp16", "half", "bf16_pure")),
        "float32; autocast to bf16 or fp16; or weights in 16 bits too (half, bf16_pure)",
    )
    loss_scale: float | str | None = knob(
        None,
        Number(0, above=True, optional=True, words=("dynamic",)),
        "loss scaling: a fixed factor, or 'dynamic' for GradScaler",
    )
    evaluate_every: int | None = knob(
        None,
        Number(0, whole=True, optional=True),
        "steps between validations; None: often early, rarely later; 0: never",
    )
    seed: int = knob(0, Number(0, whole=True), "random seed of weights, batches and dropout")
    processes: int = knob(1, COUNT, "number of processes that train together, each on its own batches")
    device: str = knob(
        "auto", OneOf(("auto", "cpu", "cuda", "mps")), "where to train; 'auto' takes a GPU if there is one"
    )

    measure = ACCURACY  # what says how good a run is: not an entry here, but a subclass may make it one

    __signature__ = _EntriesSignature()

    def __new__(cls, **entries: object) -> Self:
        """Refuse unknown names with our own error, before the dataclass's `__init__` raises a bare TypeError."""
        cls._check_names(entries)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if "known" in each.metadata:
                object.__setattr__(self, each.name, _find_part(each, getattr(self, each.name)))
            elif "rule" not in each.metadata:
                expected = "knob(default, rule, meaning) or part(default, known, meaning)"
                raise RecipeError(
                    f"{each.name}: declare an entry of a recipe with {expected} of labkit.training.recipe"
                )
            elif problem := each.metadata["rule"].problem(getattr(self, each.name)):
                raise RecipeError(f"{each.name}: {problem}")

    def but(self, **changes: Any) -> Self:
        """The same recipe with some entries changed."""
        return dataclasses.replace(self, **changes)

    def changes_from(self, other: "Recipe") -> dict[str, tuple[Any, Any]]:
        """What differs: {"lr": (0.1, 10)}, the other's value first; parts by their names.

        An entry that only one of the two recipes has counts as its default in the other.
        """
        mine = type(other)().summary() | self.summary()
        theirs = type(self)().summary() | other.summary()
        return {name: (theirs[name], mine[name]) for name in mine if mine[name] != theirs[name]}

    def summary(self) -> dict[str, Any]:
        """Every entry as a plain value; parts by their names."""
        values = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: _name(value) if callable(value) else value for name, value in values}

    @classmethod
    def parse(cls, assignment: str) -> dict[str, Any]:
        """'lr=3' as {"lr": 3.0}, for the command line."""
        name, equals, text = assignment.partition("=")
        if not equals:
            raise RecipeError(f"expected NAME=VALUE, got {assignment!r}; for example lr=3")
        cls._check_names([name])
        rule = cls.__dataclass_fields__[name].metadata.get("rule")
        return {name: rule.parse(text) if rule else text}

    @classmethod
    def _check_names(cls, names: Iterable[str]) -> None:
        for name in names:
            if name not in cls.__dataclass_fields__:
                raise RecipeError(f"a recipe has no {name!r}. {near(name, cls.__dataclass_fields__)}")


def _name(part: Callable) -> str:
    return getattr(part, "__name__", type(part).__name__)  # a functools.partial has no name of its own


def _find_part(each: Field, value: object) -> Callable:
    if callable(value):
        return value
    known = each.metadata["known"]
    if isinstance(value, str) and value in known:
        return known[value]
    raise RecipeError(f"{each.name}: expected a function or the name of one, got {value!r}. {near(value, known)}")


def changes_in_words(recipe: Recipe, other: Recipe) -> str:
    """'lr 0.1 -> 10, depth 2 -> 3', or that nothing was changed."""
    changes = recipe.changes_from(other)
    return ", ".join(f"{name} {short(old)} -> {short(new)}" for name, (old, new) in changes.items()) or "nothing"


def short(value: object) -> str:
    """A value of a recipe as people write it: 0.1, 1e-06, relu."""
    return f"{value:g}" if isinstance(value, float) else str(value)
