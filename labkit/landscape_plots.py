"""The four places where descent may find itself, drawn from nets that were really trained."""

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.failures import FAILURES
from labkit.plots import OTHERS, ROLES, new_axes
from labkit.recipe import Recipe
from labkit.tools.landscape import Slice, line_between, random_direction, slice_2d
from labkit.tools.sharpness import top_eigenpair
from labkit.train import Training

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


def contour(found: Slice, ax: Axes | None = None, levels: int = 14) -> Axes:
    """Loss over two directions as a filled map; the cross is the net."""
    ax = ax or new_axes()
    image = ax.contourf(found.distances, found.distances, found.losses, levels=levels, cmap="cividis")
    ax.contour(found.distances, found.distances, found.losses, levels=levels, colors="white", linewidths=0.3)
    ax.plot(0, 0, marker="+", color=ROLES["sick"]["color"], markersize=10, markeredgewidth=2)
    ax.figure.colorbar(image, ax=ax, label="loss")
    return ax


def surface(found: Slice, ax, top: float | None = None) -> Axes:
    """Loss over two directions as a surface on a 3-D axis, cut at `top`; the dot is the net."""
    heights = np.clip(found.losses, None, top)
    across, along = np.meshgrid(found.distances, found.distances)
    ax.plot_surface(across, along, heights, cmap="cividis", rstride=1, cstride=1, linewidth=0.15, edgecolor="white")
    ax.plot([0], [0], [found.here], marker="o", color=ROLES["sick"]["color"], markersize=6, zorder=10)
    ax.set_zlim(top=top)
    ax.set_zlabel("loss")
    return ax


def landscape_picture(seed: int = 0) -> Figure:
    """Saddle, plateau, sharp and flat minimum: a surface of each, and a map beneath it."""
    figure = Figure(figsize=(16, 8.2), layout="constrained")
    places = {
        "Saddle: up one way, down the other": saddle(seed),
        "Plateau: level, and the way down is far": plateau(seed),
        "Sharp minimum: one batch of all images": minimum("sick", seed),
        "Flat minimum: batches of 16": minimum("healthy", seed),
    }
    tops = _shared_top(list(places.values())[2:])
    for column, (title, found) in enumerate(places.items()):
        ax = figure.add_subplot(2, 4, column + 1, projection="3d")
        top = tops if column > 1 else None
        surface(found, ax, top)
        ax.set_title(title, fontsize="large", loc="left")
        flat = figure.add_subplot(2, 4, column + 5)
        contour(Slice(found.distances, np.clip(found.losses, None, top)), flat)
    return figure


def _shared_top(slices: list[Slice]) -> float:
    """One height for all of them, so that steep looks steep beside flat."""
    return float(max(np.percentile(each.losses, 90) for each in slices))


# --- the nets -------------------------------------------------------------------------------------


def saddle(seed: int = 0, points: int = POINTS) -> Slice:
    """Two layers of weights near 0. One way they grow together, and the loss falls; the other way against each other.

    The first direction leads to the net as it is after the escape. The second is the same with the last layer turned
    round: the outputs then change by the same amount, in the wrong direction.
    """
    recipe = FAILURES["saddle_point"].sick.but(seed=seed, steps=250, evaluate_every=0)
    training, (start,) = _trained(recipe, {0})
    escape = line_between(training.model, start)
    last = f"layer{recipe.depth}"
    against = {name: -part if name.startswith(last) else part for name, part in escape.items()}
    return _over(training, start, escape, against, span=0.6, points=points)


def plateau(seed: int = 0, points: int = POINTS) -> Slice:
    """Half-way across the flat; the first direction leads to where the net is after the escape."""
    training, (start,) = _trained(FAILURES["plateau"].sick.but(seed=seed, evaluate_every=0), {ON_THE_FLAT})
    escape = line_between(training.model, start)
    return _over(training, start, escape, None, span=1.0, points=points)


def minimum(role: str, seed: int = 0, points: int = POINTS) -> Slice:
    """Around a net that has fitted its images: along the direction of most curvature, and along a random one."""
    training, _ = _trained(FAILURES["sharp_minimum"].recipes(seed=seed)[role].but(evaluate_every=0), set())
    x, y = training.data.train
    _, steepest = top_eigenpair(training.model, training.recipe.loss, x, y)
    return _over(training, None, steepest, random_direction(training.model, seed), span=1.0, points=points)


def _trained(recipe: Recipe, at: set[int]) -> tuple[Training, list[dict[str, torch.Tensor]]]:
    """A training after its run, and the weights as they were after so many steps."""
    training, kept = Training(recipe), []

    def keep(recorder) -> None:
        if recorder.steps in at:
            kept.append({name: weight.detach().clone() for name, weight in training.model.named_parameters()})

    keep(type("Before", (), {"steps": 0}))
    training.run(each_step=keep, instruments=False, progress=False)
    return training, kept


def _over(training: Training, start, first, second, *, span: float, points: int) -> Slice:
    """The plane of two directions around a state of the net; around the net as it is where none is given."""
    if start is not None:
        first = {name: -part for name, part in first.items()}  # it was measured from the end
        training.model.load_state_dict(start, strict=False)
    x, y = (part[:SAMPLES] for part in training.data.train)
    return slice_2d(training.model, training.recipe.loss, x, y, first, second, span=span, points=points)
