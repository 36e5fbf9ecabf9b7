"""Pictures of runs: each function takes a study or its runs and an axis, draws, and gives the axis back.

No pyplot: figures made here belong to nobody else, so they can be drawn in a thread of a notebook.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from labkit.knob import RecipeError
from labkit.readings import typical
from labkit.run import Run, written_whole

# Okabe-Ito colours, told apart by colour-blind readers; line styles and markers serve where there is no colour.
STYLES = {
    # Healthy is broad and pale, so that a cured line that lies right on it is still seen.
    "healthy": {"color": "#56B4E9", "linestyle": "-", "linewidth": 4.0, "marker": "o", "markersize": 8},
    "sick": {"color": "#D55E00", "linestyle": "-", "linewidth": 1.8, "marker": "s", "markersize": 4},
    "cured": {"color": "#004D40", "linestyle": (0, (4, 2)), "linewidth": 1.4, "marker": "^", "markersize": 4},
}
DATELESS = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
# (low, high, words) of healthy runs, measured on the lab's nets; a band to read a trace against.
BANDS = {"update_ratio": (1e-3, 0.2), "dead": (0.0, 0.2)}
LABELS = {
    "loss": "training loss",
    "gap": "validation loss - training loss",
    "update_ratio": "update / weight, largest layer",
    "grad_norm": "gradient norm",
    "dead": "dead units, worst layer",
    "activation_std": "largest activation spread",
}


def new_axes() -> Axes:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def loss(runs: dict[str, Run], ax: Axes | None = None) -> Axes:
    """Training loss of every step, on a log axis: raw as a thin line, smoothed as a thick one."""
    ax = ax or new_axes()
    for role, run in runs.items():
        style = _line(role)
        ax.plot(run["step"], run["loss"], color=style["color"], alpha=0.3, linewidth=0.7)
        ax.plot(run["step"], run.smoothed(), **style, label=role)
        mark_nonfinite(run, ax)
    return _finish(ax, "training loss", log=True, title="Loss (thin: raw, thick: smoothed)")


def validation(runs: dict[str, Run], ax: Axes | None = None) -> Axes:
    """Validation accuracy over the steps."""
    ax = ax or new_axes()
    for role, run in runs.items():
        ax.plot(run["val_step"], run["val_accuracy"], **_line(role), label=role)
        mark_nonfinite(run, ax)
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    return _finish(ax, "validation accuracy", title="Validation")


def validation_loss(runs: dict[str, Run], ax: Axes | None = None) -> Axes:
    """Validation loss (thick) and the loss on training images in eval mode (thin), on a log axis."""
    ax = ax or new_axes()
    for role, run in runs.items():
        style = _line(role)
        ax.plot(run["val_step"], run["val_loss"], **style, label=role)
        ax.plot(run["val_step"], run["probe_loss"], color=style["color"], linewidth=0.8, alpha=0.7)
        mark_nonfinite(run, ax)
    return _finish(ax, "loss", log=True, title="Thick: validation, thin: training images")


def gradient_profile(runs: dict[str, Run], ax: Axes | None = None) -> Axes:
    """Median gradient norm of each layer, from the input to the output."""
    ax = ax or new_axes()
    for role, run in runs.items():
        norms = typical(run["grad_norm"])
        shown = np.where(norms > 0, norms, np.nan)  # a log axis has no place for 0; the text says so
        places = np.arange(1, len(norms) + 1)
        ax.plot(places, shown, **STYLES[role], label=_with_zeros(role, norms))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(ax, "median gradient norm", log=True, title="Gradient norm per layer")
    ax.set_xlabel("layer, from the input")
    return ax


def instrument(runs: dict[str, Run], name: str, ax: Axes | None = None) -> Axes:
    """The one trace that gives a failure away, of the layer where it is largest, with its healthy band."""
    ax = ax or new_axes()
    for role, run in runs.items():
        steps, values = _worst(run, name)
        ax.plot(steps, values, **_line(role), label=role)
    if name in BANDS:
        ax.axhspan(*BANDS[name], color=STYLES["healthy"]["color"], alpha=0.12, linewidth=0)
    share = name == "dead"
    if share:
        ax.set_ylim(-0.03, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    title = "Gives it away" + (" (shaded: healthy)" if name in BANDS else "")
    return _finish(ax, LABELS.get(name, name), log=not share, title=title)


def study_picture(study, heading: str = "") -> Figure:
    """Healthy, sick and cured side by side: loss, validation, gradients per layer, and what gives it away."""
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    draw_study(study, figure.subplots(1, 4))
    figure.suptitle(heading or study.mode.title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def draw_study(study, axes) -> None:
    """Four panels of one study."""
    runs = study.runs
    loss(runs, axes[0])
    axes[0].legend(frameon=False, fontsize=8)
    if study.mode.shows == "gap":  # the gap is between two curves: show both, and beside them the accuracy
        validation_loss(runs, axes[3])
    else:
        instrument(runs, study.mode.shows, axes[3])
    validation(runs, axes[1])
    gradient_profile(runs, axes[2])
    if any("all 0" in text for text in axes[2].get_legend_handles_labels()[1]):
        axes[2].legend(frameon=False, fontsize=8)


def save(figure: Figure, path) -> Path:
    """Write a figure whole or not at all; the same figure gives the same bytes, so no dates inside."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in DATELESS:
        raise RecipeError(f"expected a file that ends in .png, .pdf or .svg, got {str(path)!r}")
    with matplotlib.rc_context({"svg.hashsalt": "labkit"}), written_whole(path) as stream:
        figure.savefig(stream, format=kind, dpi=150, metadata=DATELESS[kind])
    return path


def mark_nonfinite(run: Run, ax: Axes) -> None:
    """A cross on the upper edge at the first non-finite step."""
    origin = run.facts.get("first_nonfinite")
    if origin:
        transform = ax.get_xaxis_transform()
        ax.plot([origin["step"]], [0.97], "X", color="black", markersize=8, transform=transform, clip_on=False)
        ax.annotate("NaN", (origin["step"], 0.97), xycoords=transform, xytext=(7, -4),
                    textcoords="offset points", fontsize=8)  # fmt: skip


def _line(role: str) -> dict:
    return {name: value for name, value in STYLES[role].items() if not name.startswith("marker")}


def _with_zeros(role: str, norms: np.ndarray) -> str:
    if np.isnan(norms).all():
        return f"{role}: all NaN"
    zeros = int((norms == 0).sum())
    return f"{role}: {'all 0' if zeros == len(norms) else f'{zeros} all 0'}" if zeros else role


def _worst(run: Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A per-layer trace as one line: at each step the layer where it is largest."""
    trace = np.where(np.isfinite(run[name]), run[name], np.nan)
    steps = run["val_step"] if len(trace) == len(run["val_step"]) and name == "dead" else run["step"]
    filled = np.where(np.isnan(trace), -np.inf, trace).max(axis=1)
    return steps, np.where(np.isfinite(filled), filled, np.nan)


def _finish(ax: Axes, ylabel: str, *, log: bool = False, title: str = "") -> Axes:
    ax.set_xlabel("step")
    ax.set_ylabel(ylabel)
    ax.set_title(title, fontsize=10, loc="left")
    if log:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        narrow = high < 100 * low  # less than two decades: label 1, 2 and 5 of each
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,), numticks=6))
        ax.yaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=not narrow))
        ax.yaxis.set_minor_locator(NullLocator())  # minor ticks take half of the drawing time
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax
