"""Plots of runs: each function takes a run, a study or {label: run}, and axes; it draws and returns the axes.

At the end those of any numbers: `lines`, `bars`, `histograms`, `images`; `described` gives a figure its alt text.

No pyplot: it has global state, and figures must be drawable in a thread of a notebook.
"""

import functools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from labkit.errors import RecipeError
from labkit.recording.files import written_whole
from labkit.recording.run import Run
from labkit.recording.summaries import gradient_ratio, running_median, total_norm, typical
from labkit.recording.traces import FLOAT16_LARGEST, NATS, SHARE, TRACES, trace

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
MEDIAN = 25  # steps of the running median of the loss: a spike of less than half of them does not move it
DATELESS = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


# --- over time ------------------------------------------------------------------------------------


def loss(thing, ax: Axes | None = None) -> Axes:
    """Training loss of every step, on a log axis; of one or two runs the running median too, as a thin line."""
    ax = ax or new_axes()
    middle = _loss_lines(ax, _lines(thing))
    return _finish(ax, "training loss", f"Loss{' (thin: median)' * middle}", log=True)


def _loss_lines(ax: Axes, lines: list[tuple[dict, Run, str]]) -> bool:
    """The loss of each step, and on top the running median, unless there are too many lines; was there one?"""
    middles = [line for line in lines if len(line[1]["loss"]) >= 2 * MEDIAN] if len(lines) <= 2 else []
    for style, run, label in lines:
        narrow = max(0.8, 0.55 * style["linewidth"])  # it is noisy
        ax.plot(run["step"], _positive(run["loss"]), **style | {"linewidth": narrow, "alpha": 0.8}, label=label)
        mark_nonfinite(run, ax)
    for style, run, label in middles:
        thin = {"color": _darker(style["color"]), "linewidth": 0.7, "label": f"_{label}, median of {MEDIAN} steps"}
        ax.plot(run["step"], _positive(running_median(run["loss"], MEDIAN)), **thin)  # "_": not in the legend
    return bool(middles)


def losses(thing, ax: Axes | None = None) -> Axes:
    """Training loss as a line and validation loss as dots, on one log axis."""
    ax, lines = ax or new_axes(), _lines(thing)
    middle = _loss_lines(ax, lines)
    for style, run, label in lines:
        dots = {"color": style["color"], "marker": "o", "markersize": style["linewidth"] + 1.2, "linestyle": "none"}
        if "val_loss" in run:
            dots |= {"markeredgecolor": "white", "markeredgewidth": 0.4, "label": f"_{label}, validation"}
            ax.plot(run["val_step"], _positive(run["val_loss"]), **dots)
    return _finish(ax, "loss", f"Loss (dots: validation{', thin: median' * middle})", log=True)


def validation(thing, ax: Axes | None = None) -> Axes:
    """What says how good the runs are, at every validation: the accuracy, or another measure."""
    ax, shown = ax or new_axes(), "val_accuracy"
    for style, run, label in _lines(thing):
        shown = run.measure.trace
        if shown in run:  # an error may come before the first validation
            known = ~np.isnan(run[shown])
            marker = "o" if known.sum() == 1 else None  # samples are judged at the end alone
            ax.plot(run["val_step"][known], run[shown][known], **style, marker=marker, label=label)
        mark_nonfinite(run, ax)
    return _finish(ax, _label(shown), "Validation", share=TRACES[shown].unit == SHARE)


def gap(thing, ax: Axes | None = None) -> Axes:
    """Validation loss above the loss on training images, both in eval mode, on a linear axis; the gap is shaded."""
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        steps, training, held_out = run["val_step"], _finite(run["probe_loss"]), _finite(run["val_loss"])
        ax.fill_between(steps, training, held_out, color=style["color"], alpha=0.25, linewidth=0)
        ax.plot(steps, held_out, **style, label=label)
        ax.plot(steps, training, color=style["color"], linewidth=0.8, linestyle=":", label=f"_{label}, training")
    ax.set_ylim(bottom=0)
    return _finish(ax, "loss", "Gap (dotted: training)")


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
    """Where a run became non-finite: the stages from inputs to gradients, the first bad one marked; or the error.

    Of several runs it shows the last, which stands behind those it is compared with.
    """
    ax = ax or new_axes()
    ax.set_axis_off()
    if not thing:
        return ax
    run = _one(list(thing.values())[-1] if isinstance(thing, Mapping) else thing)
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


# --- language models ------------------------------------------------------------------------------


def position_loss(thing, ax: Axes | None = None) -> Axes:
    """The loss at each position of a sequence at the last evaluation, in nats."""
    return _at_the_end(thing, "position_loss", ax, "position")


def word_loss(thing, ax: Axes | None = None) -> Axes:
    """The loss of each token at the last evaluation, in nats."""
    return _at_the_end(thing, "word_loss", ax, "token")


def _at_the_end(thing, name: str, ax: Axes | None, across: str) -> Axes:
    ax = ax or new_axes()
    for style, run, label in _lines(thing):
        if name in run:
            ax.plot(run[name][-1], **style, label=label)
    _finish(ax, _label(name), _title(name))
    ax.set_xlabel(across)
    return ax


SHIFTS = ("same", "next", "after it")


def shift_loss(thing, ax: Axes | None = None) -> Axes:
    """The loss against the token that was read, the next one and the one after it: the lowest is what it predicts."""
    ax = _bars(thing, ax, _last_shift_losses, "nats", "Which token does it predict?")
    ax.set_xticks(range(1, len(SHIFTS) + 1), SHIFTS)
    ax.set_xlabel("token")
    return ax


def _last_shift_losses(run: Run) -> np.ndarray:
    """NaN, which has no bar, where a loss is not finite or too large to be drawn."""
    losses = run["shift_loss"][-1]
    return np.where(np.abs(losses) < 1e6, losses, np.nan)


ACROSS = 10  # samples in a row: one of each digit


def written(thing, ax: Axes | None = None) -> Axes:
    """Samples that a language model wrote at the end of its run; of several runs, a row of each."""
    ax = ax or new_axes()
    lines = [line for line in _lines(thing) if line[1].facts.get("pictures")]
    ax.set_title("Samples", fontsize="medium", loc="left")
    ax.set_xticks([])
    ax.set_yticks([])
    if not lines:
        return ax
    rows, names = [], []
    shape = _pixels(lines[0][1].facts["pictures"][0]).shape
    for _, run, label in lines:
        pictures = [each for each in map(_pixels, run.facts["pictures"]) if each.shape == shape]
        count = 1 if len(lines) > 1 else max(1, len(pictures) // ACROSS)
        rows += [_side_by_side(pictures[ACROSS * row : ACROSS * (row + 1)], shape) for row in range(count)]
        names += [label, *[""] * (count - 1)]
    ax.imshow(np.concatenate(rows), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    height = len(rows[0])
    ax.set_yticks([height * (row + 0.5) for row in range(len(rows))], names if len(lines) > 1 else [""] * len(rows))
    ax.tick_params(length=0)
    return ax


def _pixels(picture: str) -> np.ndarray:
    """A picture in words, # for black, as an array with a pale frame."""
    black = np.array([[float(pixel == "#") for pixel in line] for line in picture.split("\n")])
    return np.pad(black, 1, constant_values=0.12)


def _side_by_side(pictures: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([*pictures, *[np.zeros(shape)] * (ACROSS - len(pictures))], axis=1)


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
    """A range test: the loss over the learning rate, its smoothed line, the suggestion, and where it diverges."""
    ax = ax or new_axes()
    ax.plot(found.lrs, found.losses, ".-", color=OTHERS[0], markersize=4, linewidth=1.0, label="each batch")
    ax.plot(found.lrs, found.smoothed, color="#777777", linewidth=1.0, label="smoothed (lags)")
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
        size = _positive(np.array([row.size])).filled(np.nan)[0]
        ax.barh(place, size, **style)
        if row.status != "ok":  # beside the bar; where there is none, at the axis
            end, across = (size, "data") if np.isfinite(size) else (0, "axes fraction")
            beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": "small"}
            ax.annotate(row.status, (end, place), xycoords=(across, "data"), **beside)
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


# --- any numbers ----------------------------------------------------------------------------------


def lines(
    values: Mapping[str, Any],
    ax: Axes | None = None,
    *,
    label: str = "",
    title: str = "",
    across: str = "step",
    log: bool = False,
    share: bool = False,
) -> Axes:
    """Curves of any numbers, such as the losses of your own loop: {"healthy": losses} or {"healthy": (steps, losses)}.

    The names healthy, sick and cured have their own styles. `label` names the values, and `across` the other axis.
    """
    if not values:
        raise RecipeError('plots.lines: expected {"healthy": losses, ...}, got nothing to draw')
    ax = ax or new_axes()
    for index, (name, given) in enumerate(values.items()):
        x, y = given if isinstance(given, tuple) else (range(len(given)), given)
        if len(x) != len(y):
            raise RecipeError(f"plots.lines: {name!r} has {len(x)} places and {len(y)} values; expected as many")
        style = ROLES.get(name, {"color": OTHERS[index % len(OTHERS)], "linestyle": "-", "linewidth": 1.6})
        y = np.asarray([float(each) for each in y])
        shown = _positive(y) if log else _finite(y)
        ax.plot([float(each) for each in x], shown, **style | {"marker": None}, label=_plain(name))
    if len(values) > 1:
        ax.legend(edgecolor="none", framealpha=0.8, fontsize=8)
    _finish(ax, label, title, log=log, share=share)
    ax.set_xlabel(across)
    return ax


def bars(
    values: Mapping[str, float | Sequence[float]],
    ax: Axes | None = None,
    *,
    errors: Mapping[str, float] | None = None,
    label: str = "",
    title: str = "",
    share: bool = False,
    log: bool = False,
    zero: bool = True,
    reference: tuple[str, float] | None = None,
) -> Axes:
    """Compared values as bars, one below the other: {"dropout": 0.91}, or over seeds {"dropout": [0.90, 0.92, 0.91]}.

    Of several values the bar is the mean, the line its standard deviation, and every value a dot; or give `errors`.
    `label` names the axis, and `reference` a line: ("healthy", 0.93). With `zero=False` the axis need not begin at 0,
    and points take the place of bars, whose length would mislead.
    """
    found = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in values.items()}
    if not found or any(each.ndim != 1 or not len(each) for each in found.values()):
        raise RecipeError("plots.bars: expected {label: a number, or a list of numbers}, got " + repr(dict(values)))
    if unknown := set(errors or {}) - set(found):
        raise RecipeError(f"plots.bars: errors are given for {sorted(unknown)}, which are none of {list(found)}")
    ax = ax or new_axes()
    places = np.arange(len(found))
    means = np.array([each.mean() for each in found.values()])
    spread = np.array([each.std(ddof=1) if len(each) > 1 else np.nan for each in found.values()])
    if errors:
        spread = np.array([errors.get(name, np.nan) for name in found])
    if zero and not log:
        ax.barh(places, means, 0.62, color=OTHERS[0], alpha=0.55)
    else:
        ax.plot(means, places, "D", color=OTHERS[0], markersize=6)
    ax.errorbar(means, places, xerr=np.where(np.isfinite(spread), spread, 0), fmt="none", ecolor="black", capsize=3)
    for place, each in zip(places, found.values(), strict=True):
        if len(each) > 1:
            ax.plot(each, np.full(len(each), place), "o", color="black", markersize=2.6, alpha=0.7)
    if reference:
        words, where = reference
        ax.axvline(where, color=OTHERS[1], linestyle="--", linewidth=1.2)
        top = {"xycoords": ("data", "axes fraction"), "xytext": (0, 2), "textcoords": "offset points"}
        ax.annotate(_plain(words), (where, 1), ha="center", fontsize="small", color="#a33c00", **top)
    ax.set_yticks(places, [_plain(name) for name in found])
    ax.set_ylim(len(found) - 0.4, -0.6)  # the first on top
    _across(ax, label, title, log=log, share=share)
    return ax


def histograms(
    groups: Mapping[str, Mapping[str, Any]], ax: Axes | None = None, *, label: str = "value", title: str = "",
    log: bool = False, bins: int = 60,
) -> Axes:  # fmt: skip
    """Distributions per layer, the first layer on top: {"healthy": {"layer1": values}, "sick": {"layer1": values}}.

    With `log` the size of the values on a log axis, as for gradients; the share that is exactly 0 is written beside.
    """
    if not groups or not all(groups.values()):
        raise RecipeError('plots.histograms: expected {"healthy": {"layer1": values, ...}, ...}, got nothing to draw')
    ax = ax or new_axes()
    arrays = {name: {layer: _flat(each) for layer, each in layers.items()} for name, layers in groups.items()}
    layers = list(dict.fromkeys(layer for each in arrays.values() for layer in each))
    together = np.concatenate([each for group in arrays.values() for each in group.values()])
    shown = np.abs(together[together != 0]) if log else together
    if not len(shown):
        raise RecipeError("plots.histograms: every value is 0 or not finite; there is nothing to draw")
    low, high = np.quantile(shown, [0.001, 0.999])
    high = high if high > low else low + abs(low) + 1e-12
    edges = np.geomspace(low, high, bins + 1) if log else np.linspace(low, high, bins + 1)
    for index, (name, group) in enumerate(arrays.items()):
        color = ROLES.get(name, {"color": OTHERS[index % len(OTHERS)]})["color"]
        for layer, each in group.items():
            row = len(layers) - 1 - layers.index(layer)
            counts, _ = np.histogram(np.clip(np.abs(each[each != 0]) if log else each, low, high), edges)
            heights = row + 0.85 * counts / max(1, counts.max())
            once = {"label": name if layer == next(iter(group)) else f"_{name}, {layer}"}
            ax.stairs(heights, edges, baseline=row, fill=True, color=color, alpha=0.25)
            ax.stairs(heights, edges, baseline=row, color=color, linewidth=1.2, **once)
            if log and len(each) and (zeros := np.mean(each == 0)) > 0.005:
                words, place = f"{zeros:.0%} are 0", (0.99, row + 0.75 - 0.25 * index)
                beside = {"xycoords": ("axes fraction", "data"), "ha": "right", "fontsize": "small"}
                ax.annotate(words, place, **beside, bbox={"facecolor": "white", "edgecolor": color, "pad": 1.5})
    ax.set_yticks(range(len(layers)), [_plain(layer) for layer in reversed(layers)])
    _across(ax, label, title, log=log)
    if len(arrays) > 1:
        ax.legend(edgecolor="none", framealpha=0.8, fontsize=8)
    return ax


def images(pictures: Any, titles: Sequence[str] = (), *, columns: int = 8) -> Figure:
    """A grid of grey or colour images (n, channels, height, width), each scaled to its own range, with titles."""
    array = np.asarray(pictures.detach().cpu() if hasattr(pictures, "detach") else pictures, dtype=np.float64)
    if array.ndim != 4 or array.shape[1] not in (1, 3) or not len(array):
        raise RecipeError(f"plots.images: expected images of shape (n, 1 or 3, height, width), got {array.shape}")
    if titles and len(titles) != len(array):
        raise RecipeError(f"plots.images: expected one title for each of {len(array)} images, got {len(titles)}")
    across = min(columns, len(array))
    rows = -(-len(array) // across)
    figure = Figure(figsize=(1.0 * across, (1.25 if titles else 1.05) * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for index, ax in enumerate(figure.subplots(rows, across, squeeze=False).ravel()):
        ax.set_axis_off()
        if index < len(array):
            low, high = np.nanmin(array[index]), np.nanmax(array[index])
            scaled = np.moveaxis((array[index] - low) / ((high - low) or 1.0), 0, -1)
            ax.imshow(scaled.squeeze(-1) if scaled.shape[-1] == 1 else scaled, cmap="gray_r", vmin=0, vmax=1)
            ax.set_title(_plain(str(titles[index])) if titles else "", fontsize=8)
    return figure


class Described:
    """A figure with one sentence that says what is to be seen: its alt text, on a page or read aloud."""

    def __init__(self, figure: Figure, words: str):
        self.figure, self.words = figure, words

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        from labkit.drawing.html import figure_html

        return figure_html(self.figure, self.words)


def described(drawn: Figure | Axes, words: str) -> Described:
    """A figure, or that of these axes, with its alt text: the last line of a cell."""
    if not words.strip():
        raise RecipeError("plots.described: expected a sentence that says what is to be seen, got an empty one")
    return Described(drawn if isinstance(drawn, Figure) else drawn.figure, words)


def _flat(values: Any) -> np.ndarray:
    """The finite entries of an array or a tensor."""
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def _across(ax: Axes, label: str, title: str, *, log: bool = False, share: bool = False) -> None:
    """The finish of plots whose values run across."""
    ax.set_xlabel(label)
    ax.set_title(title, fontsize="medium", loc="left")
    if share:
        ax.xaxis.set_major_locator(MaxNLocator(5))  # "86.25%" is wide
        ax.xaxis.set_major_formatter(PercentFormatter(1))
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(_short))
        ax.xaxis.set_minor_locator(NullLocator())
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)


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
    "position_loss": position_loss,
    "word_loss": word_loss,
    "shift_loss": shift_loss,
    "written": written,
    "gap": gap,
    "grad_norm": gradient_bars,
    "dead": dead_units,
    "activation_size": activation_sizes,
}


def study_picture(study, heading: str = "") -> Figure:
    """Healthy, sick and cured together: loss, validation, gradients per layer, and the instrument that shows it."""
    figure = Figure(figsize=(8.8, 5.8), layout="constrained")  # its type can still be read at half the width of a page
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2).ravel()
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


def new_axes(title: str = "", xlabel: str = "", ylabel: str = "") -> Axes:
    """Axes in a figure of their own, for what no function here draws, with the look of those that are drawn here."""
    _, ax = subplots()
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return ax


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float] = (5, 3.2), **options) -> tuple:
    """A figure and its axes, as pyplot's `subplots` returns them, with the look of those that are drawn here."""
    figure = Figure(figsize=figsize, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, subplot_kw={"axes_class": _Plain}, **options)


class _Plain(Axes):
    """Axes without a frame at the top and on the right, a small title on the left, and colours for everybody."""

    def __init__(self, *place, **options):
        super().__init__(*place, **options)
        self.set_prop_cycle(color=OTHERS)
        self.spines[["top", "right"]].set_visible(False)

    def set_title(self, label, fontdict=None, loc="left", **options):
        return super().set_title(label, fontdict, loc, **{"fontsize": "medium"} | options)


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
    if isinstance(thing, Run):
        return thing
    return thing.sick if hasattr(thing, "sick") else next(iter(thing.values()))


def _plain(words: str) -> str:
    """Words of a run, which matplotlib must not read as a formula: it takes what stands between dollar signs as one."""
    return words.replace("$", r"\$")


def _finite(values: np.ndarray) -> np.ma.MaskedArray:
    """What a linear axis can show."""
    return np.ma.masked_invalid(np.asarray(values, dtype=np.float64))


def _darker(color: str) -> tuple[float, ...]:
    """The same hue, for a thin line on top of one in this colour."""
    return tuple(0.6 * each for each in to_rgb(color))


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
