"""The four places where descent may find itself, drawn from nets that were really trained."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.failures import FAILURES
from labkit.drawing.plots import OTHERS, ROLES, new_axes
from labkit.training.recipe import Recipe
from labkit.tools.landscape import Slice, line_between, random_direction, slice_2d
from labkit.tools.sharpness import top_eigenpair
from labkit.training.loop import Training

SAMPLES = 256  # training images that the loss is taken on
POINTS = 21  # per side of a surface: 441 forward passes, about a second
ON_THE_FLAT = 60  # steps after which the plateau is drawn: half-way across


def line(found: Slice | dict[str, Slice], ax: Axes | None = None) -> Axes:
    """Loss along one direction; of several slices {label: slice}, one line each."""
    ax = ax or new_axes()
    for index, (label, each) in enumerate((found if isinstance(found, dict) else {None: found}).items()):
        ax.plot(each.distances, each.losses, color=OTHERS[index % len(OTHERS)], label=label)
    ax.axvline(0, color="black", linewidth=0.6, linestyle=":")
    ax.set_xlabel("distance from the net")
    ax.set_ylabel("loss")
    if isinstance(found, dict):
        ax.legend(fontsize="small", frameon=False)
    return ax


def contour(found: Slice, ax: Axes | None = None, top: float | None = None) -> Axes:
    """Loss over two directions as a filled map, cut at `top`; the cross is the net."""
    ax = ax or new_axes()
    levels = np.linspace(found.losses.min(), top or found.losses.max(), 15)
    places = (found.distances, found.distances, found.losses)
    image = ax.contourf(*places, levels=levels, cmap="cividis", extend="max" if top else "neither")
    ax.contour(*places, levels=levels, colors="white", linewidths=0.3)
    ax.plot(0, 0, marker="+", color=ROLES["sick"]["color"], markersize=11, markeredgewidth=2.2)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, format="%.1f")
    ax.set_aspect("equal")
    return ax


def surface(found: Slice, ax: Axes, top: float | None = None) -> Axes:
    """Loss over two directions as a surface on a 3-D axis, cut at `top`; the dot is the net."""
    heights = np.clip(found.losses, None, top)
    limits = {"vmin": found.losses.min(), "vmax": top or found.losses.max()}
    across, along = np.meshgrid(found.distances, found.distances)
    ax.plot_surface(
        across, along, heights, cmap="cividis", rstride=1, cstride=1, **limits, linewidth=0.2, edgecolor="w"
    )
    ax.plot([0], [0], [found.here], marker="o", color=ROLES["sick"]["color"], markersize=7, zorder=10)
    ax.set_zlim(limits["vmin"], limits["vmax"])
    ax.tick_params(labelsize="x-small", pad=0)
    ax.set_box_aspect((1, 1, 0.8), zoom=1.15)
    return ax


def landscape_picture(seed: int = 0) -> Figure:
    """Saddle, plateau, sharp and flat minimum: a surface of each, and its map beneath. Trains four small nets."""
    sharp, flat = minimum("sick", seed), minimum("healthy", seed)
    top = float(np.percentile(sharp.losses, 90))  # one height for both, so that steep looks steep beside flat
    panels = (
        ("Saddle: down one way, up the other", saddle(seed), None, "towards the escape", "one layer turned round"),
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


# --- the nets -------------------------------------------------------------------------------------


def saddle(seed: int = 0, points: int = POINTS) -> Slice:
    """Two layers of weights near 0. One way they grow together, and the loss falls; the other way against each other.

    The first direction leads to the net as it is after the escape. The second is the same with the last layer turned
    round: the outputs then change by the same amount, in the wrong direction.
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
    """A training after its run, and the weights as they were after so many steps."""
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
    """The way from an earlier state of the net to the present one; the net is put back to the start of it."""
    end = weights_of(training.model)
    training.model.load_state_dict(start, strict=False)
    return line_between(training.model, end)


def _over(training: Training, first, second, *, span: float, points: int) -> Slice:
    """The plane of two directions around the net, on some of its training images."""
    x, y = (part[:SAMPLES] for part in training.data.train)
    return slice_2d(training.model, training.recipe.loss, x, y, first, second, span=span, points=points)
