"""Plots of runs: each function takes a run, a study or {label: run}, and axes; it draws and returns the axes.

No pyplot: it has global state, and figures must be drawable in a thread of a notebook.
"""

import functools
import textwrap
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from labkit.errors import RecipeError
from labkit.recording.files import written_whole
from labkit.recording.run import Run
from labkit.recording.summaries import gradient_ratio, total_norm, typical
from labkit.recording.traces import FLOAT16_LARGEST, NATS, TRACES, trace

# Okabe-Ito colours, which are safe for colour-blind readers. Width, dashes and markers differ too, for print without
# colour: healthy is wide and pale, so that a cured line on top of it is still visible.
ROLES = {
    "healthy": {"color": "#56B4E9", "linestyle": "-", "linewidth": 3.6, "marker": "o"},
    "sick": {"color": "#D55E00", "linestyle": "-", "linewidth": 1.6, "marker": "s"},
    "cured": {"color": "#000000", "linestyle": (0, (3, 2)), "linewidth": 1.0, "marker": "^"},
}
BAR_STYLES = {
    "healthy": {"color": "#56B4E9"},
    "sick": {"color": "#D55E00", "hatch": "////", "edgecolor": "white", "linewidth": 0.3},
    "cured": {"color": "white", "edgecolor": "black", "linewidth": 0.8},
}
OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000")
BAND = "#56B4E9"
DATELESS = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


# --- over time ------------------------------------------------------------------------------------


def loss(thing, ax: Axes | None = None) -> Axes:
    """Training loss, on a log axis: every step as a thin line, smoothed as a thick one. The thick one lags."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        _loss_lines(ax, style, run, label)
        mark_nonfinite(run, ax)
    return _finish(ax, "training loss", "Loss (thin: each step, thick: smoothed)", log=True)


def _loss_lines(ax: Axes, style: dict, run: Run, label: str) -> None:
    """The loss of each step as a thin line, smoothed as a thick one."""
    thin = {"color": style["color"], "alpha": 0.35, "linewidth": 0.6}
    ax.plot(run["step"], _positive(run["loss"]), **thin, label=f"_{label}, each step")  # "_": not in the legend
    ax.plot(run["step"], _positive(run.smoothed()), **style, label=label)


def losses(thing, ax: Axes | None = None) -> Axes:
    """Training loss as a line and validation loss as dots, on one log axis."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        _loss_lines(ax, style, run, label)
        dots = {"color": style["color"], "marker": "o", "markersize": style["linewidth"] + 1.2, "linestyle": "none"}
        if "val_loss" in run:
            dots |= {"markeredgecolor": "white", "markeredgewidth": 0.4, "label": f"_{label}, validation"}
            ax.plot(run["val_step"], _positive(run["val_loss"]), **dots)
        mark_nonfinite(run, ax)
    return _finish(ax, "loss", "Loss (line: training, dots: validation)", log=True)


def validation(thing, ax: Axes | None = None) -> Axes:
    """Validation accuracy."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        if "val_accuracy" in run:  # an error may come before the first validation
            ax.plot(run["val_step"], run["val_accuracy"], **style, label=label)
        mark_nonfinite(run, ax)
    return _finish(ax, _label("val_accuracy"), "Validation", share=True)


def gap(thing, ax: Axes | None = None) -> Axes:
    """Validation loss above the loss on training images, both in eval mode; the gap between them is shaded."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        steps, training, held_out = run["val_step"], _positive(run["probe_loss"]), _positive(run["val_loss"])
        ax.fill_between(steps, training, held_out, color=style["color"], alpha=0.25, linewidth=0)
        ax.plot(steps, held_out, **style, label=label)
        ax.plot(steps, training, color=style["color"], linewidth=0.8, linestyle=":", label=f"_{label}, training")
    return _finish(ax, "loss", "Gap (dotted: training)", log=True)


def gap_line(thing, ax: Axes | None = None) -> Axes:
    """The generalisation gap over time, with its healthy band."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        with np.errstate(invalid="ignore"):  # two infinite losses have no gap
            ax.plot(run["val_step"], run.gap, **style, label=label)
    return _finish(ax, "validation - training loss", "Gap over time", band="gap")


def gradient_norms(thing, ax: Axes | None = None) -> Axes:
    """Gradient norm of one run over time, one line per layer, dark for the input side; of a study, the sick run."""
    ax = ax or new_axes()
    run = _one(thing)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(run.layers)))
    for index, (layer, shade) in enumerate(zip(run.layers, shades, strict=True)):
        outer = index in (0, len(run.layers) - 1)  # the legend has the first and the last
        label = _plain(layer) if outer else f"_{_plain(layer)}"
        ax.plot(run["step"], _positive(run["grad_norm"][:, index]), color=shade, linewidth=1, label=label)
    mark_nonfinite(run, ax)
    return _finish(ax, _label("grad_norm_total"), _title("grad_norm"), log=True)


def gradient_heat(thing, ax: Axes | None = None) -> Axes:
    """Gradient norm of each layer as a heat map: steps across, layers from the input down."""
    ax = ax or new_axes()
    run = _one(thing)
    sizes = np.ma.log10(_positive(run["grad_norm"])).T
    image = ax.imshow(sizes, aspect="auto", interpolation="nearest", cmap="cividis")
    ax.set_yticks(range(len(run.layers)), map(_plain, run.layers))
    ax.set_xlabel("step")
    ax.set_title("Gradient norm (power of ten)", fontsize="medium", loc="left")
    ax.figure.colorbar(image, ax=ax)
    return ax


def gradient_ratio_line(thing, ax: Axes | None = None) -> Axes:
    """Gradient norm of the first layer over that of the last, with its healthy band."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        ax.plot(run["step"], _positive(gradient_ratio(run)), **style, label=label)
    return _finish(ax, _label("grad_ratio"), "Gradient ratio", log=True, band="grad_ratio")


def update_ratio(thing, ax: Axes | None = None) -> Axes:
    """Update norm over weight norm, of the layer where it is largest, with its healthy band."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        largest = run["update_ratio"].max(axis=1, initial=0)
        ax.plot(run["step"], _positive(largest), **style, label=label)
        note_zeros(largest, style, label, ax)
    return _finish(ax, "largest layer", _title("update_ratio"), log=True, band="update_ratio")


def weight_norms(thing, ax: Axes | None = None) -> Axes:
    """Norm of all weights together."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        ax.plot(run["step"], _positive(total_norm(run["weight_norm"])), **style, label=label)
    return _finish(ax, _label("weight_norm"), _title("weight_norm"), log=True)


def learning_rate(thing, ax: Axes | None = None) -> Axes:
    """The learning rate that was actually used."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        ax.plot(run["step"], run["lr"], **style, label=label)
    return _finish(ax, _label("lr"), f"{_title('lr')}, as used")


def attention_entropy(thing, ax: Axes | None = None) -> Axes:
    """Entropy of each attention head in nats; at 0 it attends to a single token."""
    ax = ax or new_axes()
    run = _one(thing)
    for index, head in enumerate(run.heads):
        ax.plot(
            run["val_step"], run["attention_entropy"][:, index], color=OTHERS[index % len(OTHERS)], label=_plain(head)
        )
    ax.set_ylim(bottom=0)
    return _finish(ax, "entropy (nats)", f"{_title('attention_entropy')} per head")


def lowest_entropy(thing, ax: Axes | None = None) -> Axes:
    """Entropy of the attention head where it is lowest."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        if "attention_entropy" in run:
            ax.plot(run["val_step"], run["attention_entropy"].min(axis=1), **style, label=label)
    ax.set_ylim(bottom=0)
    return _finish(ax, "lowest head (nats)", _title("attention_entropy"))


def validation_loss(thing, ax: Axes | None = None) -> Axes:
    """The validation loss alone."""
    return compare(thing, "val_loss", ax, log=True)


def compare(thing, name: str, ax: Axes | None = None, log: bool | None = None) -> Axes:
    """Any trace of several runs; of a trace per layer, the layer where it is largest.

    A log axis where asked for; by default where the values are positive and span two decades.
    """
    ax = ax or new_axes()
    lines = _lines(thing)
    if lines and not any(name in run for _, run, _ in lines):
        lines[0][1][name]  # raises NoTrace, which lists the traces
    drawn = [
        line for line in lines if name in line[1] and len(line[1][name])
    ]  # not one that ended before its first step
    values = [largest_column(run[name]) for _, run, _ in drawn]
    shown = np.concatenate([*values, []])
    shown = shown[np.isfinite(shown)]
    if log is None:
        log = len(shown) > 0 and shown.min() > 0 and shown.max() > 100 * shown.min()
    for (style, run, label), line in zip(drawn, values, strict=True):
        ax.plot(run.steps_of(name), _positive(line) if log else line, **style, label=label)
    label = textwrap.fill(_label(name), 28)  # one line of more is longer than the axis of a small pane
    return _finish(ax, label, _title(name), log=log)


STAGES = ("inputs", "weights", "activations", "loss", "gradients")


def origin(thing, ax: Axes | None = None) -> Axes:
    """Where a run became non-finite: the stages from inputs to gradients, the first bad one marked; or the error."""
    ax = ax or new_axes()
    ax.set_axis_off()
    if not thing:
        return ax
    run = _one(thing)
    found, error = run.facts.get("first_nonfinite"), run.facts.get("error")
    ax.set_xlim(0, 1)
    ax.set_ylim(-0.5, len(STAGES) - 0.5)
    if error:
        ax.set_title(f"{_plain(error['kind'])} at step {error['step']}", fontsize="medium", loc="left")
        words = _plain("\n".join(textwrap.wrap(error["message"].split(". ")[0], 34)[:8]))
        ax.text(
            0, len(STAGES) - 0.8, words, va="top", fontsize="small", family="monospace", color=ROLES["sick"]["color"]
        )
        return ax
    ax.set_title(
        f"First non-finite value: step {found['step']}" if found else "All values are finite",
        fontsize="medium",
        loc="left",
    )
    for place, stage in enumerate(reversed(STAGES)):
        bad = bool(found) and stage == found["stage"]
        box = {
            "boxstyle": "round,pad=0.35",
            "facecolor": ROLES["sick"]["color"] if bad else "white",
            "edgecolor": "#888888",
        }
        words = f"{stage}: {_plain(found.get('place', 'unknown'))}" if bad else stage
        ax.text(0.02, place, words, va="center", fontsize="small", bbox=box, color="white" if bad else "black")
    return ax


def largest_column(trace: np.ndarray) -> np.ndarray:
    """The largest finite value of each row; NaN where there is none."""
    rows = trace.reshape(len(trace), -1).astype(np.float64)
    largest = np.where(np.isfinite(rows), rows, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(largest), largest, np.nan)


def instrument(name: str):
    """How to draw an instrument: a function of a study and axes."""
    return INSTRUMENTS.get(name) or functools.partial(compare, name=name)


# --- per layer ------------------------------------------------------------------------------------


def gradient_bars(thing, ax: Axes | None = None) -> Axes:
    """Median gradient norm of each layer, from the input to the output."""
    return _bars(
        thing, ax, lambda run: typical(run["grad_norm"]), _label("grad_norm_total"), "Gradient per layer", log=True
    )


def dead_units(thing, ax: Axes | None = None) -> Axes:
    """Share of each layer's units that are dead on the whole probe at the end, with the healthy band."""
    ax = _bars(thing, ax, lambda run: run["dead"][-1][1:-1], "share of the layer", _title("dead"), share=True)
    healthy_band(ax, "dead")
    return ax


def activation_sizes(thing, ax: Axes | None = None) -> Axes:
    """Largest value of each activation before training, in float32, and the largest float16."""
    ax = _bars(thing, ax, _largest_activations, "in float32", "Largest activation", log=True)
    ax.axhline(FLOAT16_LARGEST, color="black", linewidth=0.8)
    words, place = f"float16 ends: {FLOAT16_LARGEST:,}", (0.02, FLOAT16_LARGEST)
    offset = {"xytext": (0, 2), "textcoords": "offset points"}
    readable = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.4}  # over a bar that passes the line
    ax.annotate(words, place, xycoords=("axes fraction", "data"), fontsize="small", bbox=readable, **offset)
    ax.set_ylim(top=max(ax.get_ylim()[1], 20 * FLOAT16_LARGEST))
    return ax


def activation_histograms(thing, ax: Axes | None = None) -> Axes:
    """The last histogram of every activation of one run, one above the other; of a study, the sick run."""
    ax = ax or new_axes()
    run = _one(thing)
    for index in range(len(run.activations)):
        counts, (low, high) = run["histogram"][-1, index], run["histogram_range"][-1, index]
        if np.isfinite([low, high]).all() and counts.max() > 0:
            edges = np.linspace(low, max(high, low + 1e-6), len(counts) + 1)
            ax.stairs(0.9 * counts / counts.max() + index, edges, baseline=index, fill=True, color=OTHERS[0], alpha=0.6)
    ax.set_yticks(range(len(run.activations)), map(_plain, run.activations))
    ax.set_xlabel("value")
    ax.set_title("Activations", fontsize="medium", loc="left")
    return ax


def _largest_activations(run: Run) -> np.ndarray:
    """One number per activation: from the replay of an overflow, else from the first evaluation of the probe."""
    origin = run.facts.get("first_nonfinite") or {}
    if sizes := origin.get("float32_sizes"):
        last = list(sizes.values())[-1]
        return np.array([sizes.get(name, np.nan) for name in run.activations[1:-1]] + [last])
    return np.abs(run["histogram_range"][0, 1:]).max(axis=1)


ZERO = {"xycoords": ("data", "axes fraction"), "fontsize": "small", "fontweight": "bold"}


def _bars(thing, ax: Axes | None, read, ylabel: str, title: str, **options) -> Axes:
    """Side by side for each layer: one bar per run, healthy first."""
    ax = ax or new_axes()
    lines = _lines(thing)
    for index, (style, run, label) in enumerate(lines):
        values = read(run)
        width = 0.8 / len(lines)
        places = np.arange(1, len(values) + 1) + (index - (len(lines) - 1) / 2) * width
        shown = _positive(values).filled(np.nan) if options.get("log") else values
        ax.bar(places, shown, width, label=label, **BAR_STYLES.get(label, {"color": style["color"]}))
        if options.get("log"):  # on a log axis 0 has no bar: write it, or the layer seems to be missing
            for place in places[np.asarray(values) == 0]:
                ax.annotate("0", (place, 0.01), ha="center", color=style["color"], **ZERO)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(ax, ylabel, title, **options)
    ax.set_xlabel("layer, from the input")
    return ax


# --- results of the tools -------------------------------------------------------------------------


def range_test(found, ax: Axes | None = None) -> Axes:
    """A range test: raw and smoothed loss over the learning rate, the suggestion, and where it diverges."""
    ax = ax or new_axes()
    ax.plot(found.lrs, found.losses, ".", color="#999999", markersize=3, label="each batch")
    ax.plot(found.lrs, found.smoothed, color=OTHERS[0], linewidth=1.6, label="smoothed")
    finite = found.smoothed[np.isfinite(found.smoothed)]
    if len(finite):
        ax.set_ylim(0, 1.5 * max(finite[0], np.median(finite)))
    if found.suggestion:
        ax.axvline(found.suggestion, color=OTHERS[2], linestyle="--", label=f"suggestion {found.suggestion:.2g}")
    if found.diverged_at:
        ax.axvline(found.diverged_at, color=OTHERS[1], linestyle=":", label=f"diverges {found.diverged_at:.2g}")
    ax.legend(edgecolor="none", fontsize=8)
    _finish(ax, "loss", "Range test")
    ax.set_xscale("log")
    ax.set_xlabel("learning rate")
    return ax


def gradient_flow(found, ax: Axes | None = None) -> Axes:
    """The gradient per entry of every parameter, as bars on a log axis; those with a problem are hatched."""
    ax = ax or new_axes()
    for place, row in enumerate(found.rows):
        style = BAR_STYLES["healthy" if row.status == "ok" else "sick"]
        ax.barh(place, _positive(np.array([row.size])).filled(np.nan)[0], **style)
        if row.status != "ok":
            ax.annotate(row.status, (0.02, place), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    ax.set_yticks(range(len(found.rows)), [row.name for row in found.rows], fontsize="small")
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlabel("gradient per entry")
    ax.set_title("Gradient flow", fontsize="medium", loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def dead_unit_bars(found, ax: Axes | None = None) -> Axes:
    """Share of dead units of every activation, with the healthy band."""
    ax = ax or new_axes()
    ax.bar(list(found.shares), list(found.shares.values()), **BAR_STYLES["sick"])
    healthy_band(ax, "dead")
    _finish(ax, "share of the layer", f"Dead on {found.samples} samples", share=True)
    ax.set_xlabel("activation")
    return ax


def clip_log(found, ax: Axes | None = None) -> Axes:
    """Gradient norms before clipping, and the threshold."""
    ax = ax or new_axes()
    ax.plot(found.norms, color=OTHERS[0], linewidth=1.2, label="before clipping")
    ax.axhline(found.threshold, color=OTHERS[1], linestyle="--", label=f"threshold {found.threshold:g}")
    ax.legend(edgecolor="none", fontsize=8)
    return _finish(ax, "gradient norm", f"Clipped in {found.clipped:.0%} of steps", log=True)


# --- whole figures -------------------------------------------------------------------------------

# The instrument that shows a failure (a mode names it in `shows`) -> how to draw it.
# Any other trace is drawn as a line, of the layer or head where it is largest.
INSTRUMENTS = {
    "update_ratio": update_ratio,
    "weight_norm": weight_norms,
    "lr": learning_rate,
    "attention_entropy": lowest_entropy,
    "val_loss": validation_loss,
    "origin": origin,
    "gap": gap,
    "grad_norm": gradient_bars,
    "dead": dead_units,
    "activation_size": activation_sizes,
}


def study_picture(study, heading: str = "") -> Figure:
    """Healthy, sick and cured together: loss, validation, gradients per layer, and the instrument that shows it."""
    figure = Figure(figsize=(14, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 4)
    losses(study, axes[0]).legend(edgecolor="none", framealpha=0.8, fontsize=8)
    validation(study, axes[1])
    if study.mode.shows == "grad_norm":  # the bars come last; beside them, the same over time
        gradient_ratio_line(study, axes[2])
    else:
        gradient_bars(study, axes[2])
    instrument(study.mode.shows)(study, ax=axes[3])
    figure.suptitle(heading or study.mode.title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    return figure


def side_by_side(thing, *traces: str) -> Figure:
    """Some instruments of a run, a study or {label: run} in one row; "loss" is drawn by `losses`."""
    figure = Figure(figsize=(4.2 * len(traces), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(traces), squeeze=False)[0]
    for name, ax in zip(traces, axes, strict=True):
        (losses if name == "loss" else instrument(name))(thing, ax=ax)
    if len(_lines(thing)) > 1:
        axes[0].legend(edgecolor="none", framealpha=0.8, fontsize=8)
    return figure


def save(figure: Figure, path, dots: float | None = None, **metadata) -> Path:
    """Write a figure whole or not at all, with `dots` per inch; without dates: same figure, same bytes."""
    path, kind = Path(path), picture_kind(path)
    settings = {"svg.hashsalt": "labkit", "svg.fonttype": "path", "pdf.fonttype": 42}
    settings["text.hinting"] = "none"  # hinted, small type is wider than measured
    with matplotlib.rc_context(settings), written_whole(path) as stream:
        figure.savefig(stream, format=kind, dpi=dots or max(150, figure.dpi), metadata=DATELESS[kind] | metadata)
    return path


def picture_kind(path) -> str:
    """'png', 'pdf' or 'svg', as the file's name says."""
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in DATELESS:
        raise RecipeError(f"expected a file that ends in .png, .pdf or .svg, got {str(path)!r}")
    return kind


def new_axes() -> Axes:
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def mark_nonfinite(run: Run, ax: Axes) -> None:
    """A cross on the upper edge at the first non-finite step, or at the error that ended the run."""
    words = {"NaN": run.facts.get("first_nonfinite")}
    if error := run.facts.get("error"):
        words = {_plain(error["kind"]): error}
    for word, origin in words.items():
        if not origin:
            continue
        place = (origin["step"], 0.96)
        transform = ax.get_xaxis_transform()
        ax.plot(*([value] for value in place), "X", color="black", markersize=7, transform=transform, zorder=5)
        late = place[0] > ax.dataLim.x1 / 2  # on the right half the text is to the left of the cross
        side = {"xytext": (-7, 0), "ha": "right"} if late else {"xytext": (7, 0), "ha": "left"}
        offset = side | {"textcoords": "offset points", "va": "center"}
        ax.annotate(f"{word} at step {place[0]}", place, xycoords=transform, fontsize="small", **offset)


def _label(name: str) -> str:
    """The words of a trace, and its unit if that is not a share."""
    about = trace(name)
    return _plain(about.words) + (" (nats)" if about.unit == NATS else "")


def _title(name: str) -> str:
    words = _plain(trace(name).words)
    return words[:1].upper() + words[1:]


def healthy_band(ax: Axes, trace: str, scale: float = 1.0) -> None:
    """Shade where a trace stays in healthy runs; `scale` moves the range along the axis."""
    usual = TRACES[trace]
    ax.axhspan(scale * usual.low, scale * usual.high, color=BAND, alpha=0.15, linewidth=0, zorder=0)


def note_zeros(values: np.ndarray, style: dict, label: str, ax: Axes) -> None:
    """A log axis cannot show 0: where a line is 0 throughout, write it."""
    if len(values) and not np.any(np.nan_to_num(values)):
        place = {"xy": (0.03, 0.05), "xycoords": "axes fraction", "fontsize": "small", "fontweight": "bold"}
        ax.annotate(f"{label}: 0 at every step", color=style["color"], **place)


def _lines(thing) -> list[tuple[dict, Run, str]]:
    """(line style, run, label) for a run, a study or a dictionary of runs."""
    runs = {"run": thing} if isinstance(thing, Run) else getattr(thing, "runs", thing)
    lines = []
    for index, (label, run) in enumerate(runs.items()):
        style = ROLES.get(label, {"color": OTHERS[index % len(OTHERS)], "linestyle": "-", "linewidth": 1.4})
        lines.append(({name: value for name, value in style.items() if name != "marker"}, run, label))
    return lines


def _one(thing) -> Run:
    return thing if isinstance(thing, Run) else getattr(thing, "sick", None) or next(iter(thing.values()))


def _plain(words: str) -> str:
    """Words of a run, which matplotlib must not read as a formula: it takes what stands between dollar signs as one."""
    return words.replace("$", r"\$")


def _positive(values: np.ndarray) -> np.ma.MaskedArray:
    """What a log axis can show; the rest is masked, a gap in the line, and can still be read behind the mask."""
    values = np.asarray(values, dtype=np.float64)
    return np.ma.masked_where(~(np.isfinite(values) & (values > 0)), values)


def _finish(ax: Axes, ylabel: str, title: str, *, log=False, share=False, band: str | None = None) -> Axes:
    ax.set_xlabel("step")
    ax.set_ylabel(ylabel)
    ax.set_title(title, fontsize="medium", loc="left")
    if band:
        healthy_band(ax, band)
    if share:
        ax.set_ylim(0, 1.03)
        ax.yaxis.set_major_formatter(PercentFormatter(1))
    if log:
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        subs = (1, 2, 5) if high < 100 * low else (1,)  # under two decades, powers of ten alone are too few
        ax.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
        ax.yaxis.set_major_formatter(FuncFormatter(_short))
        ax.yaxis.set_minor_locator(NullLocator())  # minor ticks take half of the drawing time
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def _short(value: float, _=None) -> str:
    """0.01 and 20 as they are, 1e-05 and 1e+30 as powers of ten."""
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:g}"
    exponent = int(np.floor(np.log10(value) + 1e-9))
    factor = round(value / 10.0**exponent)
    return f"$10^{{{exponent}}}$" if factor == 1 else f"${factor}\\!\\times\\!10^{{{exponent}}}$"
