"""The picture of a panel: the drawings of labkit.plots side by side, whole, or growing while a run trains."""

import functools
import html
import io
import threading
from collections.abc import Callable, Sequence

import ipywidgets
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from labkit.drawing import plots
from labkit.failures.signs import typical
from labkit.recording.run import NoTrace, Run

SIZE = (3.7, 2.45)  # inches of one pane: two of them fill the width of a notebook beside the knobs
DOTS = 100  # per inch: a pixel of the picture is a pixel of the screen
ROOM = 20.0  # how far a line may leave its axis before the axis is drawn anew, on a log axis: once per 20-fold
FAST = {"format": "PNG", "compress_level": 1}  # a picture is looked at once, so time counts and bytes do not

# Matplotlib's text and its caches are not made for threads: whoever draws in one waits for the others.
DRAWING = threading.Lock()

Pane = Callable  # (runs, ax) -> ax, as all of labkit.plots


def _by_layer(run: Run) -> tuple[np.ndarray, np.ndarray]:
    sizes = typical(run["grad_norm"])
    return np.arange(1, len(sizes) + 1), sizes


# What of a run that is still training is drawn over a pane: the points of one line.
LIVE: dict[Pane, Callable[[Run], tuple]] = {
    plots.loss: lambda run: (run["step"], run.smoothed()),
    plots.losses: lambda run: (run["step"], run.smoothed()),
    plots.validation: lambda run: (run["val_step"], run["val_accuracy"]),
    plots.gradient_bars: _by_layer,
    plots.update_ratio: lambda run: (run["step"], run["update_ratio"].max(axis=1, initial=0)),
    plots.gradient_ratio_line: lambda run: (run["step"], plots.gradient_ratio(run)),
    plots.weight_norms: lambda run: (run["step"], np.sqrt((run["weight_norm"] ** 2).sum(axis=1))),
    plots.learning_rate: lambda run: (run["step"], run["lr"]),
    plots.gap: lambda run: (run["val_step"], run["val_loss"]),
    plots.gap_line: lambda run: (run["val_step"], run.gap),
    plots.validation_loss: lambda run: (run["val_step"], run["val_loss"]),
}
BY_LAYER: set[Pane] = {plots.gradient_bars}  # panes whose horizontal axis is not the steps


def text_html(inside: str) -> str:
    """Words in a panel, with the line distance of a text: widgets have that of a form."""
    return f"<div style='line-height:1.45'>{inside}</div>"


def framed(size: tuple[float, float], value: bytes = b"", **layout) -> ipywidgets.Image:
    """An image of so many inches, which has its place before it has a picture.

    JupyterLab does not lay out cells that are out of sight. An image without a size of its own that got its picture
    there would stay without height when it is scrolled to.
    """
    width, height = (str(round(DOTS * side)) for side in size)
    layout = {"max_width": "100%", "height": "auto"} | layout  # as high as the width asks for
    return ipywidgets.Image(value=value or _nothing(), format="png", width=width, height=height, layout=layout)


@functools.cache
def _nothing() -> bytes:
    """One transparent point: an image without any content shows itself as broken."""
    stream = io.BytesIO()
    Image.new("LA", (1, 1)).save(stream, **FAST)
    return stream.getvalue()


class Sheet:
    """A figure with one axis for each pane."""

    def __init__(self, panes: Sequence[Pane], columns: int, size: tuple[float, float]):
        self.panes = list(panes)
        rows = -(-len(panes) // columns)
        self.figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=DOTS)
        FigureCanvasAgg(self.figure)
        grid = self.figure.subplots(rows, columns, squeeze=False).ravel()
        self.axes = list(grid[: len(panes)])
        for spare in grid[len(panes) :]:
            spare.set_axis_off()
        width, height = self.figure.get_size_inches()  # margins in inches, laid out once: a frame has no time for it
        self.figure.subplots_adjust(0.75 / width, 0.52 / height, 1 - 0.12 / width, 1 - 0.3 / height, 0.3, 0.62)

    def compose(self, thing) -> None:
        """Draw these runs on every axis; where one lacks what a pane shows, say so there."""
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


class LiveSheet(Sheet):
    """What is known as a background that is drawn once, and the lines of a run that grows over it."""

    known: tuple | None = None  # what the background shows
    widened = False  # an axis was changed for the last run

    def begin(self, thing: dict[str, Run], steps: int) -> None:
        """Make ready for a run of so many steps beside these."""
        known = (steps, *((label, id(run)) for label, run in thing.items()))
        if known == self.known and not self.widened:
            return
        self.known, self.widened, self.lines = known, False, []
        self.compose(thing)
        for pane, ax in zip(self.panes, self.axes, strict=True):
            if points := _live_points(pane):
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


class Picture:
    """An image of several panes, and a status line that says what is seen in it.

    `whole` draws runs that are finished. While one trains, `begin` draws what is known before, and `grow` adds the
    new run's lines alone, which is some ten times faster.
    """

    def __init__(self, panes: Sequence[Pane], columns: int = 2, size: tuple[float, float] = SIZE):
        self.finished, self.live = (kind(panes, columns, size) for kind in (Sheet, LiveSheet))
        self.image = framed(self.finished.figure.get_size_inches())
        self.image.add_class("labkit-picture")
        self.status = ipywidgets.HTML()
        self.status.add_class("labkit-status")
        self.say("")

    def say(self, words: str) -> None:
        """What the picture shows, for readers who hear and for programs that look on."""
        self.status.value = text_html(f"<span role='status' aria-live='polite'>{html.escape(words)}</span>")

    def whole(self, thing: dict[str, Run]) -> None:
        with DRAWING:
            self.finished.compose(thing)
            self.finished.figure.canvas.draw()
            self.image.value = self.finished.png()

    def begin(self, thing: dict[str, Run], steps: int, anew: bool = False) -> None:
        """`anew` draws the background though the runs are the same: what a pane adds to them has changed."""
        with DRAWING:
            self.live.widened |= anew
            self.live.begin(thing, steps)

    def grow(self, run: Run) -> None:
        with DRAWING:
            self.live.grow(run)
            self.image.value = self.live.png()


def panes_for(shows: str) -> list[Pane]:
    """Loss, validation, gradients per layer, and what gives a failure away."""
    third = plots.gradient_ratio_line if shows == "grad_norm" else plots.gradient_bars
    return [plots.losses, plots.validation, third, plots.instrument(shows)]


def _live_points(pane: Pane) -> Callable[[Run], tuple] | None:
    pane = getattr(pane, "__wrapped__", pane)  # a drawing that a panel adds something to
    if isinstance(pane, functools.partial):  # plots.compare of any trace
        name = pane.keywords["name"]
        steps = "val_step" if name.startswith(plots.BY_EVALUATION) else "step"
        return lambda run: (run[steps], plots.largest_column(run[name]))
    return LIVE.get(pane)


def _make_room(ax) -> None:
    """A run that goes its own way need not leave the axis at once."""
    if ax.get_yscale() == "log":
        low, high = ax.get_ylim()
        ax.set_ylim(low / 3, high * 3)


def _widen(line) -> bool:
    """Make room on the axis for a line that has left it; was that necessary?"""
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
    ax.text(0.5, 0.5, words, ha="center", va="center", wrap=True, fontsize="small", transform=ax.transAxes)
