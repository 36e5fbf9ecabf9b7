"""The gradient panel: four nets whose losses look alike at first while their gradients differ."""

import html
from dataclasses import dataclass

import numpy as np
import torch

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.diagnosis.look_alikes import ALIKE_WORST
from labkit.drawing import plots
from labkit.failures.mode import Knob
from labkit.panels.base_panel import RecipePanel, table
from labkit.panels.live_plots import BY_LAYER, LIVE, text_html
from labkit.panels.live_view import YOURS, LiveView, first_cause, verdict_html
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.recording.summaries import gradient_ratio, matrix_layers, typical
from labkit.recording.traces import TRACES
from labkit.training import models
from labkit.training.recipe import Recipe

EARLY = 20  # first steps, in which the four losses differ by less than a quarter
HEAD = 0.1  # scale of the last layer's initial weights: every net starts near ln(10), however large its activations are
BIAS = 0.1  # mean of the hidden biases; at 0 every layer after a dead one would be dead too, and hide which one is
DEAD = -30.0  # a bias so low that no image activates the unit


def mlp_with_quiet_head(recipe, data) -> torch.nn.Module:
    """An MLP whose last layer starts small and whose hidden biases start above zero, a common choice for ReLU."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        net.get_submodule(f"layer{recipe.depth}").weight.mul_(HEAD)
        for name, weight in net.named_parameters():
            if name.endswith("bias") and "layer" in name and f"layer{recipe.depth}." not in name:
                weight.uniform_(0, 2 * BIAS)
    return net


def mlp_with_dead_layer(recipe, data) -> torch.nn.Module:
    """The same, but the biases of the middle layer are so low that none of its units is ever active."""
    net = mlp_with_quiet_head(recipe, data)
    dead = f"layer{max(1, recipe.depth // 2)}.bias"
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if name.endswith(dead):
                weight.fill_(DEAD)
    return net


HEALTHY = Recipe(model=mlp_with_quiet_head, depth=10, width=64, init="he", lr=0.05, steps=200)
REGIMES = {
    "healthy": HEALTHY,
    "vanishing": HEALTHY.but(activation="sigmoid"),
    "exploding": HEALTHY.but(activation="tanh", init="normal"),
    "dead layer": HEALTHY.but(model=mlp_with_dead_layer),
}
KNOBS = (
    Knob("depth", (2, 16)),
    Knob("activation", ()),
    Knob("init", ("default", "he", "xavier", "normal")),
    Knob("init_scale", (0.1, 3.0)),
    Knob("normalisation", ()),
    Knob("residual", ()),
    Knob("lr", (1e-3, 1.0), log=True),
)
ABOUT = (
    "Four nets with ten layers. In the first steps their losses look alike: all start at ln(10) and hardly move. "
    "The gradients tell them apart at once. In a healthy net the first layer's gradient is about as large as the "
    "last layer's: that is the blue band."
)


@dataclass(frozen=True)
class Reading:
    """Loss and gradients in the first steps, and the final accuracy."""

    loss: float  # at the end of the early steps, smoothed
    ratio: float  # first layer's gradient over the last one's, in the early steps
    dead: tuple[str, ...]  # layers whose gradient is exactly 0 in all early steps
    growth: float  # factor of the gradient from one layer to the one before it
    accuracy: float | None

    @property
    def words(self) -> str:
        """Which of the four regimes it is, from the gradients alone."""
        usual = TRACES["grad_ratio"]
        if self.dead:
            return f"dead: no gradient at all in {_span(self.dead)}"
        if not np.isfinite(self.ratio):
            return "not finite"
        if self.ratio < usual.low:
            return f"vanishing: a factor {self.growth:.2g} per layer"
        return f"exploding: a factor {self.growth:.2g} per layer" if self.ratio > usual.high else "healthy"


def _number(value: float) -> str:
    """Two digits: 120 and 0.44 as they are, 2.7e-05 as a power of ten."""
    return f"{float(f'{value:.2g}'):g}"


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def read(run: Run) -> Reading:
    """The reading of the first steps of a run."""
    norms, names = matrix_layers(run, "grad_norm")
    early = norms[:EARLY]
    sizes = typical(early)
    ratio = float(typical(gradient_ratio(run)[:EARLY, None])[0])
    hidden = sizes[:-1]  # the last layer's own gradient depends on the size of the features before it
    growth = (hidden[0] / hidden[-1]) ** (1 / (len(hidden) - 1)) if len(hidden) > 1 and hidden[-1] > 0 else ratio
    dead = tuple(name for name, column in zip(names, early.T, strict=True) if not column.any())
    losses = run.smoothed()
    return Reading(float(losses[min(EARLY, len(run)) - 1]), ratio, dead, float(growth), run.accuracy)


def separation_step(run: Run, healthy: Run) -> int | None:
    """The first step at which the smoothed losses of two runs differ by a quarter; None if they never do."""
    steps = min(len(run), len(healthy))
    with np.errstate(all="ignore"):
        apart = np.abs(np.log(run.smoothed()[:steps]) - np.log(healthy.smoothed()[:steps]))
    different = np.flatnonzero(~(apart < ALIKE_WORST))
    return int(different[0]) if len(different) else None


@dataclass(frozen=True)
class Answer:
    """The runs of all regimes, and which one is chosen."""

    runs: dict[str, Run]
    chosen: str
    diagnoses: list[Diagnosis]

    @property
    def reading(self) -> Reading:
        return read(self.runs[self.chosen])

    @property
    def lesson(self) -> str:
        """When the loss shows that the run is sick, and what the gradients showed before."""
        if self.chosen == "healthy":
            return "Every layer receives a gradient of similar size, from the first steps on."
        step = separation_step(self.runs[self.chosen], self.runs["healthy"])
        when = "never" if step is None else f"only at step {step}"
        said = f"the gradients of the first {EARLY} steps show {self.reading.words}"
        return f"The loss curve differs from healthy {when}{self.alike}; {said}."

    @property
    def alike(self) -> str:
        """The other sick runs whose loss never differs from the chosen one, in words."""
        others = [label for label in self.runs if label not in ("healthy", self.chosen)]
        alike = [label for label in others if separation_step(self.runs[self.chosen], self.runs[label]) is None]
        return f", and from {' or '.join(alike)} never" if alike else ""

    @property
    def words(self) -> str:
        one = self.reading
        ratio = f"first / last layer's gradient {_number(one.ratio)} (usual: {TRACES['grad_ratio'].usual})"
        seen = f"{self.chosen.capitalize()}: loss {one.loss:.2f} at step {EARLY}, {ratio}."
        return f"{seen} Diagnosis: {first_cause(self.diagnoses)}."


def gradient_panel() -> "GradientPanel":
    """Four regimes of per-layer gradients under losses that look alike."""
    return GradientPanel()


class Chosen(dict):
    """Runs by label; `name` is the chosen one."""

    def __init__(self, runs: dict[str, Run], name: str):
        super().__init__(runs)
        self.name = name

    @property
    def pair(self) -> dict[str, Run]:
        """The healthy run and the chosen one, by label."""
        return {label: self[label] for label in dict.fromkeys(("healthy", self.name))}


class GradientPanel(RecipePanel):
    """Without a browser: `respond("vanishing", depth=6)`."""

    def __init__(self, regimes: dict[str, Recipe] | None = None):
        view = LiveView([all_losses, all_ratios, bars_with_band, layers_over_time])
        super().__init__("Gradients: four nets, one loss", ABOUT, regimes or REGIMES, KNOBS, view)

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train and show the four regimes and the recipe that is set; None if it was cancelled."""
        recipe, chosen = self.recipe, self.chosen or YOURS
        runs: dict[str, Run] = {}
        for label, each in {**self.recipes, chosen: recipe}.items():
            run = self.view.train(each, Chosen(runs, "healthy") if runs else {}, ticket)
            if run is None:
                return None
            runs[label] = run
        answer = Answer(runs, chosen, diagnose(runs[chosen]))
        self.view.show(Chosen(runs, chosen), answer.words)
        self.view.verdict.value = verdict(answer)
        return answer


def verdict(answer: Answer) -> str:
    """The lesson, a table of all regimes with the usual range, and the diagnosis of the chosen one."""
    head = ("", f"loss at step {EARLY}", "first / last layer", "gradients", "final accuracy")
    rows = []
    for label, run in answer.runs.items():
        one = read(run)
        end = "?" if one.accuracy is None else f"{one.accuracy:.0%}"
        rows.append((label, f"{one.loss:.2f}", _number(one.ratio), one.words, end))
    place = list(answer.runs).index(answer.chosen)
    rows.append(("usual", "", TRACES["grad_ratio"].usual, "healthy", ""))
    lesson = f"<p><b>{html.escape(answer.lesson)}</b></p>{table(head, rows, place)}"
    return text_html(lesson + verdict_html(answer.diagnoses))


# --- the panes: all runs in the upper row; the chosen and the healthy run in the lower ---


def all_losses(runs: dict[str, Run], ax):
    """The losses of all runs; the first steps, in which they look alike, are shaded."""
    plots.loss(runs, ax)
    ax.axvspan(0, EARLY, color="black", alpha=0.06, linewidth=0, zorder=0)
    ax.set_title(f"Loss of all runs (grey: first {EARLY} steps)", fontsize="medium", loc="left")
    return ax


def all_ratios(runs: dict[str, Run], ax):
    """First layer's gradient over the last layer's; a note for runs where it is always 0."""
    plots.gradient_ratio_line(runs, ax)
    zero = [label for label, run in runs.items() if not np.nan_to_num(gradient_ratio(run)).any()]
    if zero:  # a log axis cannot show it
        place = {"xy": (0.5, 0.32), "xycoords": "axes fraction", "ha": "center", "fontsize": "small"}
        ax.annotate(f"{' and '.join(zero)}: 0 at every step", **place)
    ax.set_title("First / last layer's gradient (band: usual)", fontsize="medium", loc="left")
    return ax


def bars_with_band(runs: Chosen, ax):
    """The gradient of each layer in the first steps, chosen and healthy, with the usual range."""
    if not runs:  # the first of them is still training
        return ax
    first = {label: _early(run) for label, run in runs.pair.items()}
    plots.gradient_bars(first, ax)
    if runs.name != "healthy":  # in the same colour as in the upper row
        colour = plots.OTHERS[list(runs).index(runs.name) % len(plots.OTHERS)]
        for bar in ax.containers[-1]:
            bar.set_facecolor(colour)
    for place, size in enumerate(typical(first[runs.name]["grad_norm"]), start=1):
        if size == 0:  # a log axis cannot show it
            ax.annotate("0", (place + 0.2, 0.02), xycoords=ax.get_xaxis_transform(), ha="center", fontweight="bold")
    last = typical(matrix_layers(first["healthy"], "grad_norm")[0])[-1]
    plots.healthy_band(ax, "grad_ratio", scale=last)
    ax.set_title(f"Per layer, first {EARLY} steps: {runs.name}", fontsize="medium", loc="left")
    return ax


def layers_over_time(runs: Chosen, ax):
    """The gradient of every layer of the chosen run over time."""
    if not runs:
        return ax
    plots.gradient_norms(runs[runs.name], ax)
    ax.legend(edgecolor="none", framealpha=0.8, fontsize=8)
    ax.set_title(f"Every layer over time: {runs.name}", fontsize="medium", loc="left")
    return ax


def _early(run: Run) -> Run:
    """The gradients of the first steps of a run."""
    return Run({"grad_norm": run["grad_norm"][:EARLY]}, layers=run.layers, facts=run.facts)


LIVE |= {
    all_losses: LIVE[plots.loss],
    all_ratios: LIVE[plots.gradient_ratio_line],
    bars_with_band: lambda run: LIVE[plots.gradient_bars](_early(run)),
}
BY_LAYER.add(bars_with_band)
