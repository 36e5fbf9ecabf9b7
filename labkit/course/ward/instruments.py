"""The instruments to order for a patient of the ward: price, figure and readings of each."""

import functools
import html
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.diagnosis.checkup import MARKS, checkup
from labkit.drawing import plots
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.recording.run import Run
from labkit.recording.summaries import chance_loss, gradient_ratio, input_deviation, label_shares, typical, worst_dead
from labkit.recording.traces import TRACES
from labkit.training.recipe import Recipe, short
from labkit.training.state import TrainingState, seeded

Rows = list[tuple[str, str]]
CANDIDATES = 4  # names that a colleague suggests; one of them is correct


@dataclass(frozen=True)
class Chart:
    """What an instrument may read: the sick run and, for some, the recipes behind it."""

    run: Run
    recipe: Recipe
    twin: Recipe
    mode: FailureMode

    def __repr__(self) -> str:
        return "<sealed chart>"


@dataclass(frozen=True)
class Finding:
    """The result of an instrument: readings, a figure where there is one, and the traces behind it."""

    name: str
    title: str
    rows: tuple[tuple[str, str], ...]
    run: Run = field(repr=False)  # the ordered traces only, without the recipe
    panes: tuple[Callable, ...] = field(repr=False)

    def __getitem__(self, trace: str) -> np.ndarray:
        return self.run[trace]

    @property
    def words(self) -> str:
        return "; ".join(f"{label}: {text}" for label, text in self.rows)

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {label:32}{text}" for label, text in self.rows)])

    def figure(self, width: float = 4.2) -> Figure | None:
        """The figure, with its panels side by side; None if there is nothing to plot."""
        if not self.panes:
            return None
        figure = Figure(figsize=(width * len(self.panes), 3.0), layout="constrained")
        FigureCanvasAgg(figure)
        for draw, ax in zip(self.panes, figure.subplots(1, len(self.panes), squeeze=False)[0], strict=True):
            draw(self.run, ax=ax)
        return figure

    def _repr_html_(self) -> str:
        from labkit.drawing.html import picture_html

        figure = self.figure()
        table = rows_html(self.rows)
        picture = picture_html(figure, self.title) if figure else f"<p>{html.escape(self.title)}</p>"
        return picture + table


def rows_html(rows) -> str:
    """A table of two columns: label and reading."""
    cells = "".join(
        f"<tr><th scope='row' style='text-align:left; font-weight:normal; opacity:.75; padding:.1em 1em .1em 0; "
        f"white-space:nowrap; vertical-align:top'>{html.escape(label)}</th>"
        f"<td style='text-align:left; padding:.1em 0'>{html.escape(text)}</td></tr>"
        for label, text in rows
    )
    return f"<table style='border-collapse:collapse'>{cells}</table>"


@dataclass(frozen=True)
class Instrument:
    """One instrument that can be ordered."""

    title: str
    price: int
    traces: tuple[str, ...]
    read: Callable[[Chart], Rows]
    panes: tuple[tuple[str, Callable], ...] = ()  # (required trace, plot function)

    def examine(self, name: str, chart: Chart) -> Finding:
        shown = keep_traces(chart.run, self.traces, origin=name == "first_nan")
        panes = tuple(draw for needed, draw in self.panes if needed in shown and len(shown[needed]))
        return Finding(name, self.title, tuple(self.read(chart)), shown, panes)


def keep_traces(run: Run, traces: tuple[str, ...], origin: bool = False) -> Run:
    """These traces of a run, and of its facts only the step of the first NaN; with `origin` also its place."""
    kept = {name: run[name] for name in ("step", "val_step", *traces) if name in run}
    found = first_nonfinite(run)
    if found and not origin:
        found = {"step": found["step"], "stage": "not shown"}
    facts = {"first_nonfinite": found}
    return Run(kept, run.layers, run.parameters, run.activations, run.heads, facts=facts)


def first_nonfinite(run: Run) -> dict | None:
    """Where a run became NaN. The name of a custom loss is hidden, because it would reveal the failure."""
    found = run.facts.get("first_nonfinite")
    if not found:
        return None
    shown = {name: found[name] for name in ("step", "stage", "place", "dtype") if name in found}
    return shown | ({"place": "the loss function"} if found["stage"] == "loss" else {})


# --- readings -------------------------------------------------------------------------------------


def _number(value) -> str:
    return f"{float(value):.3g}"


def _first_and_last(values: np.ndarray) -> str:
    return f"{_number(values[0])} at the start, {_number(values[-1])} at the end" if len(values) else "nothing recorded"


def _per_layer(values) -> str:
    return ", ".join(_number(value) for value in values)


def _usual(trace: str) -> str:
    return f"(usual: {TRACES[trace].usual})"


def _percent(value) -> str:
    return f"{float(value):.1%}"


def read_loss(chart: Chart) -> Rows:
    losses, planned = chart.run["loss"], chart.run.facts["planned_steps"]
    rows = [("training loss", _first_and_last(losses)), ("chance level", _number(chance_loss(chart.run)))]
    return [*rows, ("steps", f"{len(losses)} of {planned}")]


def read_validation(chart: Chart) -> Rows:
    run = chart.run
    accuracy = f"{_percent(run.accuracy)} at the end, {_percent(np.nanmax(run['val_accuracy']))} at best"
    rows = [("validation accuracy", accuracy), ("validation loss", _first_and_last(run["val_loss"]))]
    return [*rows, ("confidence at the end", _percent(run["val_confidence"][-1]))]


def read_training_images(chart: Chart) -> Rows:
    run = chart.run
    return [
        (
            "on training images",
            f"accuracy {_percent(run['probe_accuracy'][-1])}, loss {_first_and_last(run['probe_loss'])}",
        ),
        ("on validation images", f"accuracy {_percent(run.accuracy)}, loss {_first_and_last(run['val_loss'])}"),
        ("gap between the losses", _number(run.gap[-1])),
    ]


def read_gradients(chart: Chart) -> Rows:
    run = chart.run
    norms = run["grad_norm_total"]
    median = _number(typical(norms[:, None])[0])
    return [
        ("gradient norm, all layers", f"{_first_and_last(norms)}, median {median} {_usual('grad_norm_total')}"),
        ("per layer, from the input", _per_layer(typical(run["grad_norm"]))),
        ("first / last layer", f"{_number(typical(gradient_ratio(run)[:, None])[0])} {_usual('grad_ratio')}"),
        ("gradient entries near zero", _percent(np.nanmean(run["grad_near_zero"]))),
    ]


def read_updates(chart: Chart) -> Rows:
    ratios = chart.run["update_ratio"]
    return [
        ("update / weight, per layer", f"{_per_layer(typical(ratios))} {_usual('update_ratio')}"),
        ("at the first step", _per_layer(ratios[0])),
        ("largest update / weight", _number(np.nanmax(ratios, initial=0))),
    ]


def read_weights(chart: Chart) -> Rows:
    norms = chart.run["weight_norm"]
    return [("at the start, per layer", _per_layer(norms[0])), ("at the end, per layer", _per_layer(norms[-1]))]


def read_activations(chart: Chart) -> Rows:
    run = chart.run
    std = run["activation_std"]
    rows = [("std at the start", _per_layer(std[0])), ("std at the end", _per_layer(std[-1]))]
    rows += [("layers", ", ".join(run.activations))]
    if "attention_entropy" in run:
        rows.append(("attention entropy, lowest head", f"{_number(run['attention_entropy'][-1].min())} nats"))
    return rows


def read_units(chart: Chart) -> Rows:
    run = chart.run
    dead, place = worst_dead(run)
    where = f" in {place}" if place else ""
    rows = [
        (
            "dead units",
            f"{_percent(dead[0])} at the start, {_percent(dead[-1])} at the end{where} {_usual('dead')}",
        )
    ]
    saturated = np.nan_to_num(run["activation_saturated"][-1])
    rows.append(("saturated units", f"{_percent(saturated.max(initial=0))} of a layer at most"))
    return [*rows, ("identical units", f"{_percent(np.nan_to_num(run['twins'][-1]).max(initial=0))} of a layer")]


def read_learning_rate(chart: Chart) -> Rows:
    rates = chart.run["lr"]
    return [("learning rate used", f"{_first_and_last(rates)}, {_number(rates.max(initial=0))} at most")]


def read_first_nan(chart: Chart) -> Rows:
    found = first_nonfinite(chart.run)
    if not found:
        return [("non-finite values", "none")]
    rows = [("first non-finite value", f"step {found['step']}, {found['stage']}: {found['place']}")]
    return rows + ([("its dtype", found["dtype"])] if found.get("dtype") else [])


def read_data(chart: Chart) -> Rows:
    run, facts = chart.run, chart.run.facts
    shares = label_shares(run)
    rows = [("training images", f"{facts['samples']:,}, {facts.get('batch_length', 0)} per step")]
    rows.append(("std of the inputs", f"{_number(input_deviation(run))} (usual: near 1)"))
    if "input_max" in run:
        rows.append(("largest input", f"{_number(np.nanmedian(run['input_max']))} (median over steps)"))
        rows.append(("steps with outlier images", f"{int((run['input_outliers'] > 0).sum())} of {len(run)}"))
    if "label_entropy" in run:
        rows.append(("label entropy of a batch", f"{_number(np.median(run['label_entropy']))} nats (ten classes: 2.2)"))
    if len(shares):
        rows.append(("classes", f"{(shares > 0).sum()}, from {_percent(shares.min())} to {_percent(shares.max())}"))
        rows.append(("images with changing labels", _percent(facts["relabelled"])))
    rows.append(("validation inputs", f"mean {_number(run['val_input_mean'][-1])}, std "
                 f"{_number(run['val_input_std'][-1])}"))  # fmt: skip
    rows.append(("validation images changed", _percent(facts.get("val_changed", 0))))
    return [*rows, ("validation images trained on", _percent(facts.get("val_trained_on", 0)))]


def read_modes(chart: Chart) -> Rows:
    run, facts = chart.run, chart.run.facts
    formats = {role: ", ".join(names) for role, names in (facts.get("dtypes") or {}).items() if names}
    return [
        ("train mode during training", _percent(run["train_mode"].mean() if len(run) else 0)),
        ("train mode during validation", _percent(run["val_train_mode"].mean())),
        ("batch norms, dropouts", f"{len(facts['batch_norms'])} and {len(facts['dropouts'])}"),
        ("not in the optimizer", ", ".join(facts["not_in_optimizer"]) or "nothing"),
        ("without a gradient", ", ".join(facts.get("without_gradient") or ()) or "nothing"),
        *((f"dtype: {role}", names) for role, names in formats.items()),
    ]


def read_settings(chart: Chart) -> Rows:
    """The settings as the author of the run knows them; a custom part is shown as what its author believes it is."""
    values = chart.recipe.summary()
    hidden = ("seed", "device", "processes", "evaluate_every", "data")
    rows = [(name, short(values[name])) for name, about in Recipe.__dataclass_fields__.items()
            if "rule" in about.metadata and name not in hidden]  # fmt: skip
    return [(part, believed_part(part, chart)) for part in ("optimizer", "schedule")] + rows


def believed_part(part: str, chart: Chart) -> str:
    """The library part used here, or for a custom part the healthy twin's, which its author believes it to be."""
    known = Recipe.__dataclass_fields__[part].metadata["known"]
    names = [recipe.summary()[part] for recipe in (chart.recipe, chart.twin)]
    for name in names:
        if name in known:
            return name
    return next(plain for plain in known if names[-1].startswith(plain))


def read_checkup(chart: Chart) -> Rows:
    state = TrainingState(chart.recipe)
    order = one_epoch(state)
    found = checkup(state.model, chart.recipe.loss, order, tuple(state.data.val), state.optimizer)
    return [
        (f"{MARKS[each.state]}: {each.name}", f"{each.found} (expected: {each.expected})")
        for each in found.findings
        if each.state != "skipped"
    ]


def one_epoch(state: TrainingState) -> list:
    """One epoch of batches, exactly as this recipe draws them."""
    import torch

    recipe, split = state.recipe, state.data.train
    with seeded(recipe.seed):
        batches = recipe.batches(split, recipe, torch.Generator().manual_seed(recipe.seed))
        return list(itertools.islice(batches, max(1, len(split.y) // recipe.batch_size)))


def read_colleague(chart: Chart) -> Rows:
    """The correct name among others whose loss looks the same; always the same names for a patient."""
    chance = random.Random(f"{chart.mode.name} {chart.recipe.seed}")
    alike = [name for name, mode in FAILURES.items() if mode.looks == chart.mode.looks and name != chart.mode.name]
    names = [chart.mode.name, *chance.sample(alike, min(CANDIDATES - 1, len(alike)))]
    return [("one of these", ", ".join(chance.sample(names, len(names))))]


def _trace(name: str, **options) -> tuple[str, Callable]:
    return name, functools.partial(plots.compare, name=name, **options)


# Prices: 1 for a curve, 2 for readings per layer, 3 and more for what needs the code or extra training. Together they
# cost more than a patient is worth.
INSTRUMENTS = {
    "loss": Instrument("Training loss", 0, ("loss",), read_loss, (("loss", plots.loss),)),
    "validation": Instrument("Validation", 1, ("loss", "val_loss", "val_accuracy", "val_confidence"), read_validation,
                             (("val_loss", plots.losses), ("val_accuracy", plots.validation))),
    "training_images": Instrument("Training images", 1,
                                  ("probe_loss", "probe_accuracy", "val_loss", "val_accuracy"), read_training_images,
                                  (("probe_loss", plots.gap), _trace("probe_accuracy"))),
    "gradients": Instrument("Gradients", 2, ("grad_norm", "grad_norm_total"), read_gradients,
                            (("grad_norm", plots.gradient_norms), ("grad_norm", plots.gradient_bars),
                             _trace("grad_norm_total", log=True))),
    "updates": Instrument("Updates", 2, ("update_ratio",), read_updates,
                          (("update_ratio", plots.update_ratio),)),
    "weights": Instrument("Weight norms", 1, ("weight_norm",), read_weights, (("weight_norm", plots.weight_norms),)),
    "activations": Instrument("Activations", 2,
                              ("activation_std", "histogram", "histogram_range", "attention_entropy"), read_activations,
                              (("histogram", plots.activation_histograms), _trace("activation_std", log=True),
                               ("attention_entropy", plots.attention_entropy))),
    "units": Instrument("Dead units", 1, ("dead", "activation_saturated", "twins"), read_units,
                        (("dead", plots.dead_units),)),
    "learning_rate": Instrument("Learning rate", 1, ("lr",), read_learning_rate,
                                (("lr", plots.learning_rate),)),
    "first_nan": Instrument("First NaN", 2, (), read_first_nan, (("step", plots.origin),)),
    "data": Instrument("Data log", 2, ("label_entropy", "input_max"), read_data,
                       (_trace("label_entropy"), _trace("input_max"))),
    "modes": Instrument("Modes, wiring", 3, (), read_modes),
    "settings": Instrument("Settings", 3, (), read_settings),
    "checkup": Instrument("Check-up", 4, (), read_checkup),
    "colleague": Instrument("A colleague", 5, (), read_colleague),
}  # fmt: skip
