"""The gradient panel: four nets whose losses look alike at first, and whose gradients do not."""

import html
from dataclasses import dataclass

import numpy as np
import torch

from labkit.training import models
from labkit.drawing import plots
from labkit.diagnosis.look_alikes import ALIKE_WORST
from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.failures.mode import Knob
from labkit.failures.signs import gradient_ratio, matrix_layers, typical
from labkit.training.recipe import Recipe
from labkit.course.poster.content import BANDS
from labkit.recording.run import Run
from labkit.panels.knob_panel import YOURS
from labkit.panels.base_panel import RecipePanel, table
from labkit.panels.live_plots import BY_LAYER, LIVE, text_html
from labkit.panels.live_view import Stage, verdict_html
from labkit.panels.worker import Ticket

EARLY = 20  # steps at the start in which the four losses lie within a quarter of each other
HEAD = 0.1  # of the last layer's usual size: every net begins near ln(10), however loud it is inside
BIAS = 0.1  # on average; at 0 every layer behind a dead one would be silent too, and nobody could see where it is
DEAD = -30.0  # no image lifts a unit over this


def mlp_with_quiet_head(recipe, data) -> torch.nn.Module:
    """The plain net; its last layer starts small, and its hidden biases above zero, as old advice for ReLU has it."""
    net = models.mlp(recipe, data)
    with torch.no_grad():
        net.get_submodule(f"layer{recipe.depth}").weight.mul_(HEAD)
        for name, weight in net.named_parameters():
            if name.endswith("bias") and "layer" in name and f"layer{recipe.depth}." not in name:
                weight.uniform_(0, 2 * BIAS)
    return net


def mlp_with_dead_layer(recipe, data) -> torch.nn.Module:
    """The same; but the layer in the middle has been thrown so far below zero that no image reaches it."""
    net = mlp_with_quiet_head(recipe, data)
    dead = f"layer{max(1, recipe.depth // 2)}.bias"
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if name.endswith(dead):
                weight.fill_(DEAD)
    return net


HEALTHY = Recipe(model=mlp_with_quiet_head, depth=10, width=64, init="he", lr=0.05, momentum=0.0, steps=200)
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
    "Four nets of ten layers. For the first steps their losses look alike: all begin at ln(10) and hardly move. "
    "The gradients tell them apart at once. A healthy net gives its first layer about as much as its last: that is the "
    "blue band."
)


@dataclass(frozen=True)
class Reading:
    """What loss and gradients say in the first steps, and what became of the run."""

    loss: float  # at the end of the early steps, smoothed
    ratio: float  # first layer's gradient over the last one's, in the early steps
    silent: tuple[str, ...]  # layers whose gradient is exactly 0 in all of them
    growth: float  # factor from one layer to the one before it
    accuracy: float | None

    @property
    def words(self) -> str:
        """Which of the four it is, by the gradients alone."""
        low, high = BANDS["grad_ratio"]
        if self.silent:
            return f"dead: no gradient at all in {_span(self.silent)}"
        if not np.isfinite(self.ratio):
            return "not finite"
        if self.ratio < low:
            return f"vanishing: each layer passes on {self.growth:.2g}"
        return f"exploding: each layer passes on {self.growth:.2g}" if self.ratio > high else "healthy"


def _number(value: float) -> str:
    """Two digits: 120 and 0.44 as they are, 2.7e-05 as a power of ten."""
    return f"{float(f'{value:.2g}'):g}"


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def read(run: Run) -> Reading:
    """From the first steps of a run."""
    norms, names = matrix_layers(run, "grad_norm")
    early = norms[:EARLY]
    sizes = typical(early)
    ratio = float(typical(gradient_ratio(run)[:EARLY, None])[0])
    hidden = sizes[:-1]  # the last layer's own size depends on how loud the features before it are
    growth = (hidden[0] / hidden[-1]) ** (1 / (len(hidden) - 1)) if len(hidden) > 1 and hidden[-1] > 0 else ratio
    silent = tuple(name for name, column in zip(names, early.T, strict=True) if not column.any())
    losses = run.smoothed()
    return Reading(float(losses[min(EARLY, len(run)) - 1]), ratio, silent, float(growth), run.accuracy)


def parting(run: Run, healthy: Run) -> int | None:
    """The step from which the smoothed losses of two runs differ by a quarter; None where they never do."""
    steps = min(len(run), len(healthy))
    with np.errstate(all="ignore"):
        apart = np.abs(np.log(run.smoothed()[:steps]) - np.log(healthy.smoothed()[:steps]))
    different = np.flatnonzero(~(apart < ALIKE_WORST))
    return int(different[0]) if len(different) else None


@dataclass(frozen=True)
class Answer:
    """The regimes seen so far, with the chosen one among them."""

    runs: dict[str, Run]
    chosen: str
    diagnoses: list[Diagnosis]

    @property
    def reading(self) -> Reading:
        return read(self.runs[self.chosen])

    @property
    def lesson(self) -> str:
        """When the loss told it from the healthy run, and what the gradients said before."""
        if self.chosen == "healthy":
            return "Every layer gets its share of the gradient, from the first steps on."
        step = parting(self.runs[self.chosen], self.runs["healthy"])
        when = "never" if step is None else f"at step {step}"
        said = f"the gradients of the first {EARLY} steps say {self.reading.words}"
        return f"The loss tells it from healthy {when}{self.twins}; {said}."

    @property
    def twins(self) -> str:
        """The other sick runs that the loss never tells from the chosen one, in words."""
        others = [label for label in self.runs if label not in ("healthy", self.chosen)]
        alike = [label for label in others if parting(self.runs[self.chosen], self.runs[label]) is None]
        return f", and never from {' or '.join(alike)}" if alike else ""

    @property
    def words(self) -> str:
        verdict = self.diagnoses[0].title if self.diagnoses else "no failure shows"
        one, (low, high) = self.reading, BANDS["grad_ratio"]
        ratio = f"first / last layer's gradient {_number(one.ratio)} (usual: {low:g} to {high:g})"
        return f"{self.chosen.capitalize()}: loss {one.loss:.2f} at step {EARLY}, {ratio}. Diagnosis: {verdict}."


def gradient_panel() -> "GradientPanel":
    """Four regimes of per-layer gradients under losses that look alike."""
    return GradientPanel()


class Chosen(dict):
    """Runs by label; the one that is looked at is `name`."""

    def __init__(self, runs: dict[str, Run], name: str):
        super().__init__(runs)
        self.name = name

    @property
    def pair(self) -> dict[str, Run]:
        """The healthy run and the chosen one, each as itself."""
        return {label: self[label] for label in dict.fromkeys(("healthy", self.name))}


class GradientPanel(RecipePanel):
    """Without a browser: `respond("vanishing", depth=6)`."""

    def __init__(self, regimes: dict[str, Recipe] | None = None):
        stage = Stage([all_losses, all_ratios, bars_with_band, layers_over_time])
        super().__init__("Gradients: four nets, one loss", ABOUT, regimes or REGIMES, KNOBS, stage)

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train the four regimes and the setting, unless they are remembered; None if it was given up."""
        recipe, chosen = self.recipe, self.chosen or YOURS
        runs: dict[str, Run] = {}
        for label, each in {**self.recipes, chosen: recipe}.items():
            run = self.stage.train(each, Chosen(runs, "healthy") if runs else {}, ticket)
            if run is None:
                return None
            runs[label] = run
        answer = Answer(runs, chosen, diagnose(runs[chosen]))
        self.stage.show(Chosen(runs, chosen), answer.words)
        self.stage.verdict.value = verdict(answer)
        return answer


def verdict(answer: Answer) -> str:
    """The lesson, all regimes as a table with numbers beside their usual range, and the diagnosis of the chosen one."""
    low, high = BANDS["grad_ratio"]
    head = ("", f"loss at step {EARLY}", "first / last layer", "the gradients say", "in the end")
    rows = []
    for label, run in answer.runs.items():
        one = read(run)
        end = "?" if one.accuracy is None else f"{one.accuracy:.0%} right"
        rows.append((label, f"{one.loss:.2f}", _number(one.ratio), one.words, end))
    place = list(answer.runs).index(answer.chosen)
    rows.append(("usual", "", f"{low:g} to {high:g}", "healthy", ""))
    lesson = f"<p><b>{html.escape(answer.lesson)}</b></p>{table(head, rows, place)}"
    return text_html(lesson + verdict_html(answer.diagnoses))


# --- the panes: all runs in the upper row, the chosen one beside the healthy one in the lower ---


def all_losses(runs: dict[str, Run], ax):
    """The smoothed losses of all, and the first steps, in which they look alike."""
    plots.loss(runs, ax)
    ax.axvspan(0, EARLY, color="black", alpha=0.06, linewidth=0, zorder=0)
    ax.set_title(f"Loss of all (grey: the first {EARLY} steps)", fontsize="medium", loc="left")
    return ax


def all_ratios(runs: dict[str, Run], ax):
    """First layer over last layer; words where it is 0 throughout."""
    plots.gradient_ratio_line(runs, ax)
    silent = [label for label, run in runs.items() if not np.nan_to_num(gradient_ratio(run)).any()]
    if silent:  # a log axis has no place for 0
        place = {"xy": (0.5, 0.32), "xycoords": "axes fraction", "ha": "center", "fontsize": "small"}
        ax.annotate(f"{' and '.join(silent)}: 0 at every step", **place)
    ax.set_title("First / last layer's gradient (band: usual)", fontsize="medium", loc="left")
    return ax


def bars_with_band(runs: Chosen, ax):
    """The chosen run's layers in its first steps beside the healthy one's, and where they would usually be."""
    if not runs:  # the first of them is still training
        return ax
    first = {label: _early(run) for label, run in runs.pair.items()}
    plots.gradient_bars(first, ax)
    if runs.name != "healthy":  # in the colour that it has in the upper row
        colour = plots.OTHERS[list(runs).index(runs.name) % len(plots.OTHERS)]
        for bar in ax.containers[-1]:
            bar.set_facecolor(colour)
    for place, size in enumerate(typical(first[runs.name]["grad_norm"]), start=1):
        if size == 0:  # a log axis has no place for it
            ax.annotate("0", (place + 0.2, 0.02), xycoords=ax.get_xaxis_transform(), ha="center", fontweight="bold")
    last = typical(matrix_layers(first["healthy"], "grad_norm")[0])[-1]
    ax.axhspan(*(last * edge for edge in BANDS["grad_ratio"]), color=plots.BAND, alpha=0.15, linewidth=0, zorder=0)
    ax.set_title(f"Per layer, first {EARLY} steps: {runs.name}", fontsize="medium", loc="left")
    return ax


def layers_over_time(runs: Chosen, ax):
    """Every layer of the chosen run."""
    if not runs:
        return ax
    plots.gradient_norms(runs[runs.name], ax)
    ax.legend(edgecolor="none", framealpha=0.8, fontsize=8)
    ax.set_title(f"Every layer over time: {runs.name}", fontsize="medium", loc="left")
    return ax


def _early(run: Run) -> Run:
    """The same run, as far as its gradients of the first steps go."""
    return Run({"grad_norm": run["grad_norm"][:EARLY]}, layers=run.layers, facts=run.facts)


LIVE |= {
    all_losses: LIVE[plots.loss],
    all_ratios: LIVE[plots.gradient_ratio_line],
    bars_with_band: lambda run: LIVE[plots.gradient_bars](_early(run)),
}
BY_LAYER.add(bars_with_band)
