"""Interactive charts, as an anywidget around chart.js; a matplotlib image where they cannot be shown."""

import base64
import functools
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import traitlets

from labkit.drawing import plots
from labkit.errors import RecipeError
from labkit.panels.chart_figure import NotExpressible, Numbers, as_bytes, legend_of, pane_of, plain
from labkit.panels.live_plots import (
    BY_LAYER,
    DOTS,
    DRAWING,
    SIZE,
    Pane,
    Picture,
    PlotGrid,
    Plots,
    known_by,
    live_points,
)
from labkit.recording.run import NoTrace, Run

CHOICE = "LABKIT_CHARTS"  # environment variable
KINDS = ("interactive", "picture")
HEAD = 45  # pixels of a pane that matplotlib needs for its title and margins, and the canvas does not
LIVE_LINE = {"label": "training now", "color": plots.OTHERS[1], "width": 1.6, "dash": "-"}


def plots_of(panes: Sequence[Pane], columns: int = 2, size: tuple[float, float] = SIZE) -> Plots:
    """The panes as charts, or as an image where anywidget is missing or $LABKIT_CHARTS is "picture"."""
    return (Chart if interactive() else Picture)(panes, columns, size)


def interactive() -> bool:
    chosen = os.environ.get(CHOICE, KINDS[0])
    if chosen not in KINDS:
        raise RecipeError(f"{CHOICE}: expected {' or '.join(KINDS)}, got {chosen!r}")
    return chosen == KINDS[0] and importlib.util.find_spec("anywidget") is not None


@functools.cache
def canvas_class() -> type:
    """The widget; made when first needed, as anywidget may be missing."""
    import anywidget

    here = Path(__file__).parent

    class Canvas(anywidget.AnyWidget):
        """What chart.js draws: a description, and all its numbers as 32-bit floats."""

        _esm = (here / "chart.js").read_text(encoding="utf-8")
        _css = (here / "chart.css").read_text(encoding="utf-8")
        figure = traitlets.Dict().tag(sync=True)
        points = traitlets.Bytes().tag(sync=True)

    return Canvas


class Chart(Plots):
    """The panes as charts in the browser. Of a run that trains, only the points that are new are sent."""

    def __init__(self, panes: Sequence[Pane], columns: int = 2, size: tuple[float, float] = SIZE):
        super().__init__(panes, columns, size)
        self.widget = canvas_class()(layout={"width": "100%"})
        self.widget.add_class("labkit-picture")
        self.widget.on_msg(self._asked)
        self.number = 0  # of the description that the browser has; points for another one are dropped there
        self.background: tuple[dict, bytes] | None = None  # prepared for a run that trains
        self.known: tuple | None = None  # what the background shows
        self.thing: dict[str, Run] = {}  # its runs, kept so that no other run gets the id of one of them
        self.shown = False  # whether the browser has it
        self.sent: dict[int, np.ndarray] = {}  # pane -> the points of its live line that the browser has, as (2, n)
        self._send({"panes": []}, b"")

    def show_finished(self) -> None:
        self._send(*described(self.finished))

    def begin(self, thing: dict[str, Run], steps: int, redraw: bool = False) -> None:
        known = known_by(thing, steps)
        with DRAWING:
            self.unhide()
            self.sent = {}
            self.shown = False  # the background replaces the last picture with the first points, not before
            if known == self.known and not redraw:
                return
            grid = PlotGrid(self.finished.panes, self.columns, self.size)
            grid.compose(thing)
            figure, points = described(grid)
            figure["legend"].append(LIVE_LINE)
            for pane, spec in zip(grid.panes, figure["panes"], strict=True):
                if "x" in spec and live_points(pane):
                    spec["live"] = LIVE_LINE
                    if pane not in BY_LAYER:
                        spec["x"]["limits"] = [-0.03 * steps, 1.03 * steps]
            self.thing, self.known, self.background = dict(thing), known, (figure, points)

    def grow(self, run: Run) -> None:
        with DRAWING:
            if not self.shown:
                self._send(*self.background)
                self.shown = True
            parts, points = [], []
            for number, pane in enumerate(self.finished.panes):
                if "live" in self.background[0]["panes"][number]:
                    start, new = self._news(number, pane, run)
                    if new.size:
                        parts.append({"pane": number, "start": start, "count": new.shape[1]})
                        points.append(as_bytes(new))
            if parts:
                self.widget.send({"figure": self.number, "parts": parts}, [b"".join(points)])

    def _news(self, number: int, pane: Pane, run: Run) -> tuple[int, np.ndarray]:
        """From which point on the live line of a pane has changed, and the points from there on."""
        try:
            now = np.array(live_points(pane)(run), dtype=np.float64)
        except NoTrace:
            return 0, np.zeros((2, 0))
        before = self.sent.get(number, np.zeros((2, 0)))
        both = min(before.shape[1], now.shape[1])
        same = (before[:, :both] == now[:, :both]) | (np.isnan(before[:, :both]) & np.isnan(now[:, :both]))
        differs = np.flatnonzero(~same.all(axis=0))
        start = int(differs[0]) if len(differs) else both
        self.sent[number] = now
        return start, now[:, start:]

    def _asked(self, _, content: dict, __) -> None:
        """A view that was opened while a run trains asks for the points that it has missed."""
        number, sent = self.number, dict(self.sent)  # the thread that trains goes on meanwhile
        if content.get("resend") == number and sent:
            parts = [{"pane": pane, "start": 0, "count": points.shape[1]} for pane, points in sent.items()]
            points = [as_bytes(points) for points in sent.values()]
            self.widget.send({"figure": number, "parts": parts}, [b"".join(points)])

    def _send(self, figure: dict, points: bytes) -> None:
        self.number += 1
        height = round(DOTS * self.size[1]) - HEAD
        legend = figure.get("legend", [])
        with self.widget.hold_sync():
            self.widget.points = points
            self.widget.figure = {
                **figure,
                "number": self.number,
                "columns": self.finished.columns,
                "height": height,
                "legend": legend if len(legend) > 1 else [],  # the name of a single line says nothing
            }


def described(grid: PlotGrid) -> tuple[dict, bytes]:
    """What was composed on a grid, for chart.js. A pane that it cannot draw becomes a picture."""
    numbers = Numbers()
    panes = []
    for pane, ax in zip(grid.panes, grid.axes, strict=True):
        try:
            panes.append(pane_of(ax, numbers))
        except NotExpressible:
            panes.append(pictured(pane, grid))
    panes[0].pop("legend", None)  # the legend above all panes is that of the first one
    return {"panes": panes, "legend": legend_of(grid.axes[0]), "lengths": numbers.lengths}, numbers.joined()


def pictured(pane: Pane, grid: PlotGrid) -> dict:
    """One pane as an image."""
    one = PlotGrid([pane], 1, grid.size)
    one.compose(grid.thing)
    one.figure.canvas.draw()
    data = base64.b64encode(one.png()).decode()
    title = plain(one.axes[0].get_title(loc="left"))
    return {"picture": f"data:image/png;base64,{data}", "alt": f"{title}, described in the status line."}
