"""What is on matplotlib's axes, as a description that chart.js draws: lines, areas, bars, bands and words.

The plots of `labkit.drawing.plots` stay the one place that says what a pane shows. Four panes with two runs of 40 steps
take 16 ms to compose and describe; matplotlib's rendering, which is not needed here, takes 70 ms.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedFormatter, PercentFormatter

NO_MARKER = (None, "None", "none", "", " ")
NO_LINE = ("None", "none", "", " ")
LARGEST = float(np.finfo(np.float32).max)
NARROWEST = 1e-6  # width of the limits of an axis, as a fraction of the larger one
PIXELS = 100 / 72  # in a point, at the size at which the panes are laid out
BASE = {"top": "top", "bottom": "bottom", "center": "middle", "baseline": "alphabetic", "center_baseline": "middle"}


class NotExpressible(Exception):
    """A pane has something that chart.js cannot draw, such as a heat map."""


class Numbers:
    """Arrays as one string of 32-bit floats; equal ones, such as the steps that lines share, are kept once."""

    def __init__(self):
        self.parts: list[bytes] = []
        self.known: dict[bytes, int] = {}

    def add(self, values) -> int:
        """The number of this array."""
        part = as_bytes(values)
        if part not in self.known:
            self.known[part] = len(self.parts)
            self.parts.append(part)
        return self.known[part]

    @property
    def lengths(self) -> list[int]:
        return [len(part) // 4 for part in self.parts]

    def joined(self) -> bytes:
        return b"".join(self.parts)


def as_bytes(values) -> bytes:
    """Little-endian 32-bit floats. NaN and infinity stay; a finite number beyond the range becomes the largest one."""
    values = np.asarray(np.ma.getdata(values), dtype=np.float64)
    finite = np.clip(values, -LARGEST, LARGEST)
    return np.where(np.isfinite(values), finite, values).astype("<f4").tobytes()


def pane_of(ax: Axes, numbers: Numbers) -> dict[str, Any]:
    """The description of one pane; raises NotExpressible where only a picture can show it."""
    refuse_foreign(ax)
    title = plain(ax.get_title(loc="left") or ax.get_title())
    pane: dict[str, Any] = {"title": title, "notes": [note_of(ax, text) for text in ax.texts]}
    if not ax.axison:
        return pane
    bars = {id(bar): group.get_label() for group in ax.containers for bar in group}
    pane |= {"x": axis_of(ax, "x"), "y": axis_of(ax, "y")}
    pane["lines"] = [line_of(ax, line, numbers) for line in ax.lines if not line.get_animated()]
    pane["areas"] = [area for each in ax.collections for area in areas_of(each, numbers)]
    pane["shapes"] = [shape_of(ax, patch, bars.get(id(patch), "")) for patch in ax.patches]
    if legend := ax.get_legend():
        pane["legend"] = legend_of(ax) if legend.get_visible() else []
    return pane


def plain(words: str) -> str:
    """Matplotlib's text as it is read: a dollar sign is escaped there, as it would begin a formula."""
    return words.replace(r"\$", "$")


def refuse_foreign(ax: Axes) -> None:
    """Images, other collections and patches, axes of words and insets are not drawn by chart.js."""
    foreign: list[Any] = [*ax.images, *ax.child_axes, *ax.artists]
    foreign += [each for each in ax.collections if not isinstance(each, PolyCollection)]
    foreign += [each for each in ax.patches if not isinstance(each, Rectangle)]
    for axis in (ax.xaxis, ax.yaxis):
        foreign += [axis] if axis.have_units() or isinstance(axis.get_major_formatter(), FixedFormatter) else []
    if foreign:
        raise NotExpressible(f"{type(foreign[0]).__name__} in {ax.get_title(loc='left')!r}")


def axis_of(ax: Axes, name: str) -> dict[str, Any]:
    """Label, scale and limits; `fixed` where the limits belong to the pane, such as 0 to 100 %."""
    axis = getattr(ax, f"{name}axis")
    percent = isinstance(axis.get_major_formatter(), PercentFormatter)
    return {
        "label": plain(axis.get_label_text()),
        "log": getattr(ax, f"get_{name}scale")() == "log",
        "limits": wide_enough(*getattr(ax, f"get_{name}lim")()),
        "percent": percent,
        "fixed": percent,
        "whole": name == "x" and counts(ax),
    }


def wide_enough(low: float, high: float) -> list[float]:
    """Limits that 32-bit floats can tell apart: a constant loss differs by rounding errors only."""
    size = max(abs(low), abs(high))
    room = 0.1 * size if high - low < NARROWEST * size else 0.0
    return [float(low - room), float(high + room)]


def counts(ax: Axes) -> bool:
    """Whether the x axis has whole numbers only: layers, or steps."""
    places = [np.ma.getdata(line.get_xdata()) for line in ax.lines if line.get_transform() is ax.transData]
    return bool(ax.containers) or all(np.array_equal(x, np.round(x)) for x in places)


def fractions(ax: Axes, transform) -> dict[str, bool]:
    """Which of the two coordinates are fractions of an axis; empty if both are values."""
    known: list[tuple[Any, dict[str, bool]]] = [
        (ax.transData, {}),
        (ax.get_xaxis_transform(), {"yin": True}),
        (ax.get_yaxis_transform(), {"xin": True}),
        (ax.transAxes, {"xin": True, "yin": True}),
    ]
    for each, found in known:
        if each is transform:
            return found
    raise NotExpressible(f"a transform of its own in {ax.get_title(loc='left')!r}")


def line_of(ax: Axes, line, numbers: Numbers) -> dict[str, Any]:
    """A line or a row of markers. Values that its axis cannot show (masked) are sent too, to be read in words."""
    label = plain(line.get_label())
    made = {
        "label": "" if label.startswith("_child") else label,
        "x": numbers.add(line.get_xdata()),
        "y": numbers.add(line.get_ydata()),
        "color": to_hex(line.get_color()),
        "width": float(line.get_linewidth()),
        **fractions(ax, line.get_transform()),
    }
    if line.get_linestyle() not in NO_LINE:
        made["dash"] = line.get_linestyle()
    if line.get_marker() not in NO_MARKER:
        made |= {"marker": line.get_marker(), "size": float(line.get_markersize())}
        if isinstance(line.get_markerfacecolor(), str) and line.get_markerfacecolor() == "none":
            made |= {"hollow": True, "color": to_hex(line.get_markeredgecolor())}
    if line.get_alpha() is not None:
        made["alpha"] = line.get_alpha()
    return made


def areas_of(collection: PolyCollection, numbers: Numbers) -> Iterable[dict[str, Any]]:
    """The shaded polygons of `fill_between`."""
    color = collection.get_facecolor()[0]
    for path in collection.get_paths():
        x, y = path.vertices.T
        yield {"x": numbers.add(x), "y": numbers.add(y), "color": to_hex(color), "alpha": float(color[3])}


def shape_of(ax: Axes, patch: Rectangle, label: str) -> dict[str, Any]:
    """A bar, which has a label, or a band."""
    height = float(patch.get_height())
    made = {
        "label": "" if label.startswith("_container") else plain(label),
        "x": float(patch.get_x()),
        "y": float(patch.get_y()),
        "width": float(patch.get_width()),
        "height": height if np.isfinite(height) else None,  # a log axis has no bar for 0
        "color": to_hex(patch.get_facecolor()),
        "alpha": float(patch.get_facecolor()[3]),
        **fractions(ax, patch.get_data_transform()),
    }
    if patch.get_hatch():
        made["hatch"] = True
    elif patch.get_linewidth() and patch.get_edgecolor()[3]:
        made["edge"] = to_hex(patch.get_edgecolor())
    return made


def note_of(ax: Axes, text: Text) -> dict[str, Any]:
    """Words at a place, with an offset in pixels."""
    x, y, kinds, offset = place_of(ax, text)
    made = {"text": plain(text.get_text()), "x": x, "y": y, **kinds}
    if not ax.axison and not kinds:  # without axes, values are given as fractions
        x, y = (ax.transData - ax.transAxes).transform((x, y))
        made |= {"x": float(x), "y": float(y), "xin": True, "yin": True}
    made |= {"dx": offset[0] * PIXELS, "dy": offset[1] * PIXELS, "align": text.get_ha(), "base": BASE[text.get_va()]}
    made |= {"size": round(text.get_fontsize() * PIXELS * 0.95), "bold": text.get_weight() in ("bold", 700)}
    made["color"] = to_hex(text.get_color())
    patch = text.get_bbox_patch()
    if patch is not None and not ax.axison:
        made["box"] = to_hex(patch.get_facecolor())
    return made


def place_of(ax: Axes, text: Text) -> tuple[float, float, dict[str, bool], tuple[float, float]]:
    """Coordinates, which of them are fractions, and an offset in points."""
    if not isinstance(text, Annotation):
        x, y = text.get_position()
        return float(x), float(y), fractions(ax, text.get_transform()), (0.0, 0.0)
    (x, y), kind = text.xy, text.xycoords
    if isinstance(kind, str):
        kind = (kind, kind)
    if isinstance(kind, tuple):
        kinds = {name: True for name, each in zip(("xin", "yin"), kind, strict=True) if each == "axes fraction"}
    else:
        kinds = fractions(ax, kind)
    offset = text.xyann if text.anncoords == "offset points" else (0.0, 0.0)
    return float(x), float(y), kinds, (float(offset[0]), float(offset[1]))


def legend_of(ax: Axes) -> list[dict[str, str]]:
    """Label, colour and dashes of the lines and bars that have a name."""
    handles, labels = ax.get_legend_handles_labels()
    return [{"label": plain(label), **swatch(handle)} for handle, label in zip(handles, labels, strict=True)]


def swatch(handle) -> dict[str, str]:
    if hasattr(handle, "get_linestyle") and hasattr(handle, "get_color"):
        return {"color": to_hex(handle.get_color()), "dash": handle.get_linestyle()}
    patch = handle.patches[0] if getattr(handle, "patches", ()) else handle
    return {"color": to_hex(patch.get_facecolor()), "dash": "-"}
