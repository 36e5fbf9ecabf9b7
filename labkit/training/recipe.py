"""Everything one run is made of: parts, which are functions, and knobs, which are plain values."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.training import data as datasets
from labkit.training import models
from labkit.training import parts
from labkit.training.rules import Flag, Number, OneOf, RecipeError, near


def _part(default: Callable, known: tuple[Callable, ...], meaning: str):
    return field(default=default, metadata={"known": {one.__name__: one for one in known}, "meaning": meaning})


def _knob(default, rule, meaning: str):
    return field(default=default, metadata={"rule": rule, "meaning": meaning})


POSITIVE = Number(0, above=True)
COUNT = Number(1, whole=True)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, before it is trained. The defaults are the healthy baseline of the lab.

    784-128-10 ReLU on the first 10,000 MNIST images reaches 94 to 95 % in 400 steps (5 seeds).
    """

    # Parts: functions, so that a failure mode can bring its own. A plain one may be given by its name.
    data: Callable = _part(datasets.mnist, datasets.DATASETS, "where the images come from")
    model: Callable = _part(models.mlp, (models.mlp, models.convnet, models.rnn, models.vit), "the net")
    loss: Callable = _part(parts.cross_entropy, parts.LOSSES, "what is minimised")
    optimizer: Callable = _part(parts.sgd, parts.OPTIMIZERS, "how gradients become updates")
    schedule: Callable = _part(parts.constant, parts.SCHEDULES, "the learning rate over time")
    batches: Callable = _part(parts.shuffled, parts.BATCHES, "the order of the data")
    step: Callable = _part(parts.plain_step, parts.STEPS, "the body of the training loop")
    evaluate: Callable = _part(parts.plain_evaluate, parts.EVALUATIONS, "how the net is validated")

    # Knobs: plain values, so that a slider or the command line can turn them.
    samples: int = _knob(10_000, COUNT, "training images; more buys under one point in 400 steps")
    inputs: str = _knob("normalised", OneOf(datasets.INPUTS), "pixel scale: mean 0 and std 1, 0..1, or 0..255")
    label_noise: float = _knob(0.0, Number(0, 1), "share of training labels replaced by a wrong one")
    augment: str = _knob("none", OneOf(datasets.AUGMENTATIONS), "random changes of the training images")

    width: int = _knob(128, COUNT, "units per hidden layer; channels of the first convolution")
    depth: int = _knob(2, COUNT, "layers with weights (blocks, for a transformer)")
    activation: str = _knob("relu", OneOf(tuple(models.ACTIVATIONS)), "the non-linearity")
    init: str = _knob("default", OneOf(models.INITS), "how the weights are drawn; default is PyTorch's own")
    init_scale: float = _knob(1.0, Number(0), "factor on that draw (the std itself for 'normal')")
    normalisation: str = _knob("none", OneOf(models.NORMALISATIONS), "between a layer and its activation")
    residual: bool = _knob(False, Flag(), "skip connections around hidden layers")
    dropout: float = _knob(0.0, Number(0, 0.99), "share of hidden units silenced at random")
    heads: int = _knob(2, COUNT, "attention heads of a transformer")

    lr: float = _knob(0.1, POSITIVE, "learning rate (peak, where there is a schedule)")
    momentum: float = _knob(0.9, Number(0, 0.999), "of SGD; Adam has its own")
    weight_decay: float = _knob(0.0, Number(0), "pull of the weights towards 0")
    adam_eps: float = _knob(1e-8, POSITIVE, "the constant that keeps Adam from dividing by 0")
    warmup: int = _knob(40, Number(0, whole=True), "steps of rising LR; a tenth of the standard run")
    decay: float = _knob(0.9, Number(0, 1, above=True), "factor per epoch of the exponential schedule")
    schedule_steps: int | None = _knob(None, Number(1, whole=True, optional=True), "length the schedule assumes")
    clip: float | None = _knob(None, Number(0, above=True, optional=True), "gradient clipping threshold")
    clip_by: str = _knob("norm", OneOf(("norm", "value")), "clip the global norm, or each entry")

    batch_size: int = _knob(128, COUNT, "images per step; 32 is already too noisy for LR 0.1 with momentum")
    steps: int = _knob(400, COUNT, "training steps; five epochs of the standard set")
    precision: str = _knob(
        "fp32",
        OneOf(("fp32", "bf16", "fp16", "half", "bf16_pure")),
        "autocast to bf16 or fp16; or all of it in 16 bits",
    )
    loss_scale: float | str | None = _knob(
        None,
        Number(0, above=True, optional=True, words=("dynamic",)),
        "fixed factor, or 'dynamic': GradScaler",
    )
    evaluate_every: int | None = _knob(
        None,
        Number(0, whole=True, optional=True),
        "steps between validations; None: dense early, sparse later; 0: never",
    )
    seed: int = _knob(0, Number(0, whole=True), "draws weights, batches, dropout")
    processes: int = _knob(1, COUNT, "processes that train together, each on batches of its own")
    device: str = _knob("auto", OneOf(("auto", "cpu", "cuda", "mps")), "auto takes a GPU where there is one")

    def __post_init__(self):
        for each in dataclasses.fields(self):
            if "known" in each.metadata:
                object.__setattr__(self, each.name, _find_part(each, getattr(self, each.name)))
            elif problem := each.metadata["rule"].problem(getattr(self, each.name)):
                raise RecipeError(f"{each.name}: {problem}")

    def but(self, **changes) -> "Recipe":
        """The same recipe with some entries changed."""
        _check_names(changes)
        return dataclasses.replace(self, **changes)

    def changes_from(self, other: "Recipe") -> dict[str, tuple]:
        """What differs: {"lr": (0.1, 10)}, the other's value first; parts by their names."""
        mine, theirs = self.summary(), other.summary()
        return {name: (theirs[name], mine[name]) for name in mine if mine[name] != theirs[name]}

    def summary(self) -> dict:
        """Every entry as a plain value; parts by their names."""
        values = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: _name(value) if callable(value) else value for name, value in values}

    @classmethod
    def parse(cls, assignment: str) -> dict:
        """'lr=3' as {"lr": 3.0}, for the command line."""
        name, equals, text = assignment.partition("=")
        if not equals:
            raise RecipeError(f"expected NAME=VALUE, got {assignment!r}; for example lr=3")
        _check_names([name])
        rule = cls.__dataclass_fields__[name].metadata.get("rule")
        return {name: rule.parse(text) if rule else text}


def _check_names(names) -> None:
    for name in names:
        if name not in Recipe.__dataclass_fields__:
            raise RecipeError(f"a recipe has no {name!r}. {near(name, Recipe.__dataclass_fields__)}")


def _with_checked_names(make):
    """The dataclass's own `__init__`, with our error for an unknown name instead of a bare TypeError."""

    @functools.wraps(make)
    def __init__(self, **entries):
        _check_names(entries)
        make(self, **entries)

    return __init__


Recipe.__init__ = _with_checked_names(Recipe.__init__)


def _name(part: Callable) -> str:
    return getattr(part, "__name__", type(part).__name__)  # a functools.partial has no name of its own


def _find_part(each, value) -> Callable:
    if callable(value):
        return value
    known = each.metadata["known"]
    if isinstance(value, str) and value in known:
        return known[value]
    raise RecipeError(f"{each.name}: expected a function or the name of one, got {value!r}. {near(value, known)}")
