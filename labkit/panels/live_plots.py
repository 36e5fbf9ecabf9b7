"""The picture of a panel: plots of labkit.drawing.plots in a grid, finished, or growing while a run trains."""

import base64
import functools
import html
import io
import textwrap
import threading
from collections.abc import Callable, Sequence

import ipywidgets
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from labkit.drawing import plots
from labkit.recording.run import NoTrace, Run
from labkit.recording.summaries import total_norm, typical

SIZE = (3.7, 2.45)  # inches of one pane: two of them fit beside the controls in a notebook
DOTS = 100  # per inch: a pixel of the picture is a pixel of the screen
NOTE = 46  # letters of a line that fit in a pane
ROOM = 20.0  # factor by which a log axis is extended when a line leaves it, so that it is rarely redrawn
FAST = {"format": "PNG", "compress_level": 1}  # a frame is shown once, so that time counts and size does not

# Matplotlib's text and its caches are not thread-safe: only one thread draws at a time.
DRAWING = threading.Lock()

Pane = Callable  # (runs, ax) -> ax, as the functions of labkit.drawing.plots


def _by_layer(run: Run) -> tuple[np.ndarray, np.ndarray]:
    sizes = typical(run["grad_norm"])
    return np.arange(1, len(sizes) + 1), sizes


# The line that is drawn over a pane for a run that is still training: its points (x, y).
LIVE: dict[Pane, Callable[[Run], tuple]] = {
    plots.loss: lambda run: (run["step"], run["loss"]),
    plots.losses: lambda run: (run["step"], run["loss"]),
    plots.validation: lambda run: (run["val_step"], run[run.measure.trace]),
    plots.gradient_bars: _by_layer,
    plots.update_ratio: lambda run: (run["step"], run["update_ratio"].max(axis=1, initial=0)),
    plots.gradient_ratio_line: lambda run: (run["step"], plots.gradient_ratio(run)),
    plots.weight_norms: lambda run: (run["step"], total_norm(run["weight_norm"])),
    plots.learning_rate: lambda run: (run["step"], run["lr"]),
    plots.gap: lambda run: (run["val_step"], run["val_loss"]),
    plots.gap_line: lambda run: (run["val_step"], run.gap),
    plots.validation_loss: lambda run: (run["val_step"], run["val_loss"]),
}
BY_LAYER: set[Pane] = {plots.gradient_bars}  # panes whose x axis is the layers, not the steps


def text_html(inside: str) -> str:
    """Text in a panel, with the line height of prose: widgets have that of a form."""
    return f"<div style='line-height:1.45'>{inside}</div>"


def status_html(words: str) -> str:
    """A status line, which screen readers announce when it changes."""
    return text_html(f"<span role='status' aria-live='polite'>{html.escape(words)}</span>")


def framed(size: tuple[float, float], value: bytes = b"", **layout) -> ipywidgets.Image:
    """An image of this size in inches, which keeps its place before it has a picture.

    JupyterLab does not lay out cells that are out of sight. An image without a size that got its picture there would
    still have no height when the user scrolls to it.
    """
    width, height = (str(round(DOTS * side)) for side in size)
    layout = {"max_width": "100%", "height": "auto"} | layout  # keeps the aspect ratio
    return ipywidgets.Image(value=value or _nothing(), format="png", width=width, height=height, layout=layout)


@functools.cache
def _nothing() -> bytes:
    """One transparent pixel: a browser shows an image without content as broken."""
    stream = io.BytesIO()
    Image.new("LA", (1, 1)).save(stream, **FAST)
    return stream.getvalue()


def stacked(pictures: Sequence[bytes]) -> dict[str, str]:
    """PNG images below each other as one, for a notebook that is read without widgets; nothing of none."""
    opened = [Image.open(io.BytesIO(each)).convert("RGB") for each in pictures]
    if not opened:
        return {}
    whole = Image.new("RGB", (max(each.width for each in opened), sum(each.height for each in opened)), "white")
    top = 0
    for each in opened:
        whole.paste(each, (0, top))
        top += each.height
    stream = io.BytesIO()
    whole.save(stream, format="PNG", optimize=True)
    return {"image/png": base64.b64encode(stream.getvalue()).decode()}


class PlotGrid:
    """A figure with one axis for each pane."""

    thing: dict[str, Run] | None = None  # what was composed on it last

    def __init__(self, panes: Sequence[Pane], columns: int, size: tuple[float, float]):
        self.panes, self.columns, self.size = list(panes), columns, size
        rows = -(-len(panes) // columns)
        self.figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=DOTS)
        FigureCanvasAgg(self.figure)
        grid = self.figure.subplots(rows, columns, squeeze=False).ravel()
        self.axes = list(grid[: len(panes)])
        for spare in grid[len(panes) :]:
            spare.set_axis_off()
        # Margins in inches, set once: automatic layout is too slow for a frame.
        width, height = self.figure.get_size_inches()
        self.figure.subplots_adjust(0.75 / width, 0.52 / height, 1 - 0.12 / width, 1 - 0.3 / height, 0.3, 0.62)

    def compose(self, thing) -> None:
        """Draw these runs on every axis; if one lacks the trace of a pane, say so there."""
        self.thing = thing
        for pane, ax in zip(self.panes, self.axes, strict=True):
            ax.clear()
            ax.set_axis_on()
            try:
                pane(thing, ax=ax)
            except NoTrace as missing:
                _say_missing(ax, str(missing))
        handles, labels = self.axes[0].get_legend_handles_labels()
        if len(handles) > 1:
            self.axes[0].legend(handles, labels, edgecolor="none", framealpha=0.8, fontsize=8)

    def png(self) -> bytes:
        """What is on the canvas now."""
        stream = io.BytesIO()
        Image.fromarray(np.asarray(self.figure.canvas.buffer_rgba())[:, :, :3]).save(stream, **FAST)
        return stream.getvalue()


class LivePlotGrid(PlotGrid):
    """Finished runs as a background that is drawn once, and over it the lines of a run that is training."""

    known: tuple | None = None  # what the background shows
    widened = False  # whether an axis was extended for the last run

    def begin(self, thing: dict[str, Run], steps: int) -> None:
        """Draw these runs as the background of a new run with this number of steps."""
        known = known_by(thing, steps)
        if known == self.known and not self.widened:
            return
        self.known, self.widened, self.lines = known, False, []
        self.compose(thing)
        for pane, ax in zip(self.panes, self.axes, strict=True):
            if points := live_points(pane):
                style = {"color": plots.OTHERS[1], "linewidth": 1.6, "marker": ".", "markersize": 3}
                (line,) = ax.plot([], [], animated=True, **style)
                self.lines.append((line, points))
                _make_room(ax)
                if pane not in BY_LAYER:
                    ax.set_xlim(-0.03 * steps, 1.03 * steps)
        self._keep_background()

    def grow(self, run: Run) -> None:
        """Draw what the run has recorded so far."""
        outside = False
        for line, points in self.lines:
            try:
                line.set_data(*points(run))
            except NoTrace:
                continue
            outside |= _widen(line)
        if outside:
            self.widened = True
            self._keep_background()
        self.figure.canvas.restore_region(self.background)
        for line, _ in self.lines:
            line.axes.draw_artist(line)

    def _keep_background(self) -> None:
        self.figure.canvas.draw()
        self.background = self.figure.canvas.copy_from_bbox(self.figure.bbox)


class Plots:
    """Several panes, and a status line that describes them: what a panel shows.

    `whole` shows finished runs. For a run that trains, `begin` prepares the background, and `grow` shows what is new.
    `hide` until there is something to show. `Picture` here is an image; `Chart` (chart.py) answers to the pointer.
    """

    widget: ipywidgets.DOMWidget

    def __init__(self, panes: Sequence[Pane], columns: int = 2, size: tuple[float, float] = SIZE):
        self.columns, self.size = columns, size
        self.finished = PlotGrid(panes, columns, size)
        self.status = ipywidgets.HTML()
        self.status.add_class("labkit-status")
        self.say("")

    def say(self, words: str) -> None:
        """Put this in the status line, which describes the plots."""
        self.words = words
        self.status.value = status_html(words)

    def hide(self) -> None:
        """Take up no room until there is something to show."""
        self.widget.layout.display = "none"

    def unhide(self) -> None:
        self.widget.layout.display = None

    def whole(self, thing: dict[str, Run], panes: Sequence[Pane] | None = None) -> None:
        """Show finished runs; on other panes than before, if they are given."""
        with DRAWING:
            if panes is not None:
                self.finished = PlotGrid(panes, min(self.columns, len(panes)), self.size)
            self.finished.compose(thing)
            self.show_finished()
            self.unhide()

    def png(self) -> bytes:
        """The finished plots as an image: what is stored in a notebook."""
        with DRAWING:
            self.finished.figure.canvas.draw()
            return self.finished.png()

    def stored(self) -> dict[str, str]:
        """What a notebook keeps for readers without widgets: the status line, and the plots if there are any yet."""
        return {"text/plain": self.words} | stacked([self.png()] if self.finished.thing is not None else [])

    def show_finished(self) -> None:
        """Show what was composed on the finished panes."""
        raise NotImplementedError(f"{type(self).__name__} does not show its finished panes")

    def begin(self, thing: dict[str, Run], steps: int, redraw: bool = False) -> None:
        """Prepare these runs as the background of a new one. `redraw`: even for the same runs, as marks have moved."""
        raise NotImplementedError(f"{type(self).__name__} does not prepare a background")

    def grow(self, run: Run) -> None:
        """Show what the run that trains has recorded so far."""
        raise NotImplementedError(f"{type(self).__name__} does not show a run that trains")


class Picture(Plots):
    """The panes as one image. While a run trains, only its lines are drawn again, which is ten times faster."""

    def __init__(self, panes: Sequence[Pane], columns: int = 2, size: tuple[float, float] = SIZE):
        super().__init__(panes, columns, size)
        self.live = LivePlotGrid(panes, columns, size)
        self.widget = framed(self.finished.figure.get_size_inches())
        self.widget.add_class("labkit-picture")

    def show_finished(self) -> None:
        self.finished.figure.canvas.draw()
        self.widget.width, self.widget.height = map(str, self.finished.figure.canvas.get_width_height())
        self.widget.value = self.finished.png()

    def begin(self, thing: dict[str, Run], steps: int, redraw: bool = False) -> None:
        with DRAWING:
            self.unhide()
            self.live.widened |= redraw
            self.live.begin(thing, steps)

    def grow(self, run: Run) -> None:
        with DRAWING:
            self.live.grow(run)
            self.widget.value = self.live.png()


def panes_for(shows: str) -> list[Pane]:
    """Loss, validation, gradients per layer, and the instrument that shows the failure best."""
    third = plots.gradient_ratio_line if shows == "grad_norm" else plots.gradient_bars
    return [plots.losses, plots.validation, third, plots.instrument(shows)]


def known_by(thing: dict[str, Run], steps: int) -> tuple:
    """What a background is recognised by. It holds as long as the runs are kept: ids are given again."""
    return (steps, *((label, id(run)) for label, run in thing.items()))


def live_points(pane: Pane) -> Callable[[Run], tuple] | None:
    """How to read the points of the live line of a pane; None where there is none."""
    pane = getattr(pane, "__wrapped__", pane)  # a plot that a panel adds marks to
    if isinstance(pane, functools.partial):  # plots.compare of any trace
        name = pane.keywords["name"]
        return lambda run: (run.steps_of(name), plots.largest_column(run[name]))
    return LIVE.get(pane)


def _make_room(ax) -> None:
    """Extend a log axis a little, so that a new run does not leave it at once."""
    if ax.get_yscale() == "log":
        low, high = ax.get_ylim()
        ax.set_ylim(low / 3, high * 3)


def _widen(line) -> bool:
    """Extend the axis for a line that has left it; True if that was necessary."""
    ax, values = line.axes, np.asarray(line.get_ydata(), dtype=np.float64)
    log = ax.get_yscale() == "log"
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    low, high = ax.get_ylim()
    if not len(values) or (values.min() >= low and values.max() <= high):
        return False
    least, most = min(low, values.min()), max(high, values.max())
    if log:
        least, most = (least / ROOM if least < low else low), (most * ROOM if most > high else high)
    ax.set_ylim(least, most)
    return True


def _say_missing(ax, words: str) -> None:
    ax.clear()
    ax.set_axis_off()
    words = textwrap.fill(words, NOTE)
    ax.text(0.5, 0.5, words, ha="center", va="center", wrap=True, fontsize="small", transform=ax.transAxes)
