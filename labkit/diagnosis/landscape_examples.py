"""Saddle, plateau, sharp and flat minimum, drawn from the loss of trained nets."""

import numpy as np
import torch
from matplotlib.figure import Figure

from labkit.drawing.landscape import contour, surface
from labkit.failures.catalogue import FAILURES
from labkit.tools.landscape import Slice, line_between, random_direction, slice_2d
from labkit.tools.sharpness import top_eigenpair
from labkit.training.loop import Training
from labkit.training.recipe import Recipe

SAMPLES = 256  # training images that the loss is taken on
POINTS = 21  # per side of a surface: 441 forward passes, about a second
ON_THE_FLAT = 60  # steps after which the plateau is drawn: half-way across


def landscape_picture(seed: int = 0) -> Figure:
    """Saddle, plateau, sharp and flat minimum: a surface of each, and its map beneath. Trains four small nets."""
    sharp, flat = minimum("sick", seed), minimum("healthy", seed)
    top = float(np.percentile(sharp.losses, 90))  # one height for both, so that steep looks steep beside flat
    panels = (
        ("Saddle: down one way, up the other", saddle(seed), None, "towards the escape", "last layer negated"),
        ("Plateau: level, and the way down is far", plateau(seed), None, "towards the escape", "at random"),
        ("Sharp minimum: all 1,000 images in a batch", sharp, top, "steepest direction", "at random"),
        ("Flat minimum: batches of 16", flat, top, "steepest direction", "at random"),
    )
    figure = Figure(figsize=(16, 7.6), layout="constrained")
    for column, (title, found, height, across, along) in enumerate(panels, start=1):
        upper, lower = figure.add_subplot(2, 4, column, projection="3d"), figure.add_subplot(2, 4, column + 4)
        surface(found, upper, height)
        upper.set_title(title, fontsize="medium")
        contour(found, lower, height)
        lower.set_xlabel(across)
        lower.set_ylabel(along)
    return figure


def saddle(seed: int = 0, points: int = POINTS) -> Slice:
    """Two layers of weights near 0. One way they grow together, and the loss falls; the other way against each other.

    The first direction leads to the net after the escape. The second is the same with the last layer negated: the
    outputs then change by the same amount in the wrong direction.
    """
    recipe = FAILURES["saddle_point"].sick.but(seed=seed, steps=250, evaluate_every=0)
    training, (start,) = _trained(recipe, {0})
    escape = _from(start, training)
    last = f"layer{recipe.depth}"
    against = {name: -part if name.startswith(last) else part for name, part in escape.items()}
    return _over(training, escape, against, span=0.6, points=points)


def plateau(seed: int = 0, points: int = POINTS) -> Slice:
    """Half-way across the flat; the first direction leads to where the net is after the escape."""
    training, (start,) = _trained(FAILURES["plateau"].sick.but(seed=seed, evaluate_every=0), {ON_THE_FLAT})
    escape = _from(start, training)
    return _over(training, escape, None, span=1.0, points=points)


def minimum(role: str, seed: int = 0, points: int = POINTS) -> Slice:
    """Around a net that has fitted its images: along the direction of most curvature, and along a random one."""
    training, _ = _trained(FAILURES["sharp_minimum"].recipes(seed=seed)[role].but(evaluate_every=0), set())
    x, y = training.data.train
    _, steepest = top_eigenpair(training.model, training.recipe.loss, x, y)
    return _over(training, steepest, random_direction(training.model, seed), span=1.0, points=points)


def _trained(recipe: Recipe, at: set[int]) -> tuple[Training, list[dict[str, torch.Tensor]]]:
    """A training after its run, and copies of the weights after the given steps."""
    training, kept = Training(recipe), []

    def keep(recorder) -> None:
        if recorder.steps in at:
            kept.append(weights_of(training.model))

    if 0 in at:
        kept.append(weights_of(training.model))
    training.run(each_step=keep, instruments=False, progress=False)
    return training, kept


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def _from(start: dict[str, torch.Tensor], training: Training) -> dict[str, torch.Tensor]:
    """The direction from earlier weights to the present ones; the net is reset to the earlier ones."""
    end = weights_of(training.model)
    training.model.load_state_dict(start, strict=False)
    return line_between(training.model, end)


def _over(training: Training, first, second, *, span: float, points: int) -> Slice:
    """The plane of two directions around the net, on some of its training images."""
    x, y = (part[:SAMPLES] for part in training.data.train)
    return slice_2d(training.model, training.recipe.loss, x, y, first, second, span=span, points=points)
