"""Plots of the loss landscape: along a line, as a contour map, as a surface."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from labkit.drawing.plots import OTHERS, ROLES, new_axes

if TYPE_CHECKING:  # a slice is made by a tool that needs torch; drawing one does not
    from labkit.tools.landscape import Slice


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
    """Loss over two directions as a contour map, cut at `top`; the cross is the net."""
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
