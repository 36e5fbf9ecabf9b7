"""Panes of a figure as plain values: few enough points for a page, rounded, to be drawn as SVG or by chart.js."""

import base64
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.panels.chart_figure import NotExpressible, legend_of, pane_of, plain
from labkit.recording.run import NoTrace, Run

MOST = 66  # points of a line: more cannot be told apart at the width of a page
DIGITS = 4  # significant ones: an error of 0.05 % is less than the width of a line
SIZE = (4.2, 3.0)  # inches of a pane that is stored as a picture

Draw = Callable[..., Axes]
Pane = dict[str, Any]


class Arrays:
    """Arrays of numbers, each kept once; `chart_figure` refers to them by number."""

    def __init__(self):
        self.all: list[np.ndarray] = []

    def add(self, values) -> int:
        self.all.append(np.asarray(np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)))
        return len(self.all) - 1


def pane_from(draw: Draw, runs: Any, alternative: str) -> Pane | None:
    """What `draw` draws of these runs, with its numbers in place; None if no run has the instrument."""
    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    ax, arrays = figure.add_subplot(), Arrays()
    try:
        draw(runs, ax=ax)
    except NoTrace:
        return None
    try:
        pane = pane_of(ax, arrays)  # type: ignore[arg-type]  # it is used like Numbers
    except NotExpressible:
        return {"title": plain(ax.get_title(loc="left")), "picture": picture(figure), "alt": alternative}
    pane["legend"] = legend_of(ax)
    for line in pane.get("lines", ()):
        straight = bool(line.get("xin") or line.get("yin"))
        line["x"], line["y"] = thinned(arrays.all[line["x"]], arrays.all[line["y"]], straight)
    for area in pane.get("areas", ()):
        area["x"], area["y"] = rounded(arrays.all[area["x"]]), rounded(arrays.all[area["y"]])
    return short_numbers(pane)


def picture(figure: Figure) -> str:
    """A figure as a PNG in a data URL."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def thinned(x: np.ndarray, y: np.ndarray, whole: bool = False, most: int = MOST) -> tuple[list, list]:
    """At most `most` points, with the first, the last, and the highest and lowest of every stretch between."""
    if whole or len(x) <= most:
        return rounded(x), rounded(y)
    edges = np.linspace(0, len(x), max(1, most // 3) + 1).astype(int)
    kept = {0, len(x) - 1}
    for start, end in itertools.pairwise(edges):
        part = y[start:end]
        kept.add(start)  # also where nothing is finite: a gap stays a gap
        if np.isfinite(part).any():
            kept |= {start + int(np.nanargmin(part)), start + int(np.nanargmax(part))}
    places = sorted(kept)
    return rounded(x[places]), rounded(y[places])


def rounded(values: Sequence[float] | np.ndarray) -> list[float | int | None]:
    """With DIGITS significant digits; None for what is not finite."""
    return [short_number(float(value)) for value in values]


def short_number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    value = float(f"{value:.{DIGITS}g}")
    return int(value) if value.is_integer() and abs(value) < 1e6 else value


def short_numbers(thing):
    """Every number in nested lists and dictionaries, shortened."""
    if isinstance(thing, dict):
        return {name: short_numbers(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [short_numbers(value) for value in thing]
    return short_number(thing) if isinstance(thing, float) else thing


def line_of(run: Run, name: str, most: int = MOST) -> dict[str, list]:
    """One trace of a run over its steps, smoothed where it is the loss."""
    values = run.smoothed() if name == "loss" else run[name]
    steps = np.asarray(run.steps_of(name), dtype=np.float64)
    x, y = thinned(steps, np.asarray(values, dtype=np.float64), most=most)
    return {"x": x, "y": y}
