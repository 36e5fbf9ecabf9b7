"""The overfitting panel: shrink the training set and watch the gap open; add regularisers and see how far they help."""

import html
from dataclasses import dataclass

import ipywidgets
import numpy as np

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.drawing import plots
from labkit.failures.mode import Knob
from labkit.panels.base_panel import RecipePanel, table
from labkit.panels.controls import WIDE
from labkit.panels.live_plots import LIVE, text_html
from labkit.panels.live_view import YOURS, LiveView, first_cause, in_short, verdict_html
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.recording.traces import TRACES
from labkit.training.recipe import Recipe

BASE = Recipe(depth=3, optimizer="adam", lr=0.003)  # as in `too_few_samples`: it memorises 100 images within the run
FEW = BASE.but(samples=100)
PRESETS = {
    "10,000 images": BASE,
    "1,000 images": BASE.but(samples=1_000),
    "100 images": FEW,
    "100 + dropout": FEW.but(dropout=0.5),
    "100 + decay": FEW.but(weight_decay=0.02),
    "100 + augment": FEW.but(augment="affine"),
}
KNOBS = (
    Knob("samples", (50, 10_000), log=True),
    Knob("dropout", (0.0, 0.9)),
    Knob("weight_decay", (0.0, 0.1)),
    Knob("augment", ()),
    Knob("width", (8, 512), log=True),
)
LOWEST = 1e-3  # a training loss below this counts as zero, and would squeeze the rest of the plot
UNTREATED = "untreated"  # the same images without any regulariser
ABOUT = (
    "A net trained on few images memorises them: its training loss falls to zero while the validation loss rises. "
    "The shaded area between the two is the gap. Shrink the training set and the gap opens; then see how much of it "
    "each regulariser closes."
)


@dataclass(frozen=True)
class Reading:
    """A run at one of its evaluations: at the end, or where the validation loss was lowest."""

    step: int
    gap: float
    train_accuracy: float
    val_accuracy: float
    val_loss: float


def turning_point(run: Run) -> int:
    """The evaluation with the lowest validation loss: where early stopping would have stopped."""
    losses = np.where(np.isfinite(run["val_loss"]), run["val_loss"], np.inf)
    return int(np.argmin(losses))


def reading(run: Run, place: int) -> Reading:
    traces = ("val_step", "probe_accuracy", "val_accuracy", "val_loss")
    step, train_accuracy, val_accuracy, val_loss = (run[name][place] for name in traces)
    return Reading(int(step), float(run.gap[place]), float(train_accuracy), float(val_accuracy), float(val_loss))


@dataclass(frozen=True)
class Answer:
    """The run of a setting, the run on all the data, and the untreated run on the same data."""

    run: Run
    healthy: Run
    untreated: Run | None
    early: bool  # read where the validation loss was lowest, not at the end
    diagnoses: list[Diagnosis]

    @property
    def now(self) -> Reading:
        return reading(self.run, turning_point(self.run) if self.early else -1)

    @property
    def before(self) -> Reading:
        """The untreated run on the same images, at the end."""
        return reading(self.untreated or self.run, -1)

    @property
    def runs(self) -> dict[str, Run]:
        runs = {"healthy": self.healthy, YOURS: self.run, UNTREATED: self.untreated}
        return {label: run for label, run in runs.items() if run is not None}

    @property
    def plenty(self) -> str:
        return f"{self.healthy.facts['samples']:,} images"

    @property
    def judgement(self) -> str:
        """Whether the gap is open, with the usual range."""
        high = TRACES["gap"].high
        if not np.isfinite(self.now.gap):
            return "The gap cannot be read: the losses are not finite"
        state = "open" if self.now.gap > high else "closed"
        return f"The gap is {state}: {self.now.gap:.2f} nats (usual: up to {high:g})"

    @property
    def treatment(self) -> str:
        """The effect of the treatment on gap and accuracy; empty if there is none."""
        if self.untreated is None and not self.early:
            return ""
        points = 100 * (self.now.val_accuracy - self.before.val_accuracy)
        change = f"from {self.before.gap:.2f} to {self.now.gap:.2f}"
        missing = 100 * (reading(self.healthy, -1).val_accuracy - self.now.val_accuracy)
        rest = f"{missing:.1f} points below training on" if missing > 2 else "as good as training on"
        effect = f"Your treatment changes the gap {change} and the validation accuracy by {points:+.1f} points"
        return f"{effect}: {rest} {self.plenty}."

    @property
    def words(self) -> str:
        """What the plots show, in a few short sentences: the status line."""
        turn = reading(self.run, turning_point(self.run))
        return (
            f"Your run: {in_short(self.run)}. {self.judgement}. Its validation loss is lowest at step {turn.step}. "
            f"Diagnosis: {first_cause(self.diagnoses)}."
        )


def overfitting_panel() -> "OverfittingPanel":
    """Training-set size and regularisers, with the gap shaded."""
    return OverfittingPanel()


class OverfittingPanel(RecipePanel):
    """Without a browser: `respond(samples=100, early=True)`."""

    def __init__(self, presets: dict[str, Recipe] | None = None):
        self.tried: dict[Recipe, Run] = {}  # every run of this panel, for the plot of the gap over samples
        presets = presets or PRESETS
        self.base = next(iter(presets.values()))
        view = LiveView([gap_with_turn, plots.validation, plots.gap_line, self.gaps_by_samples])
        super().__init__("Overfitting: open the gap, close it", ABOUT, presets, KNOBS, view)

    def make_controls(self) -> None:
        super().make_controls()
        self.early = ipywidgets.Checkbox(description="early stopping", style=WIDE, layout={"width": "auto"})
        self.early.tooltip = "read the run where its validation loss was lowest, as if training had stopped there"
        self.early.add_class("labkit-early")
        self.early.observe(lambda _: None if self.moving else self.start(), "value")

    def left(self) -> list:
        *above, buttons = super().left()
        return [*above, self.early, buttons]

    def respond(self, preset: str | None = None, early: bool | None = None, **changes) -> Answer:
        if early is not None:
            with self.moves():
                self.early.value = early
        return super().respond(preset, **changes)

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train and show all the data, the untreated recipe and the recipe that is set; None if it was cancelled."""
        recipe, early = self.recipe, self.early.value
        healthy = self.view.train(self.base.but(seed=recipe.seed), {}, ticket)
        bare = recipe.but(
            **{name: getattr(self.base, name) for name in ("dropout", "weight_decay", "augment", "width")}
        )
        untreated = healthy and bare != recipe and self.view.train(bare, {"healthy": healthy}, ticket)
        run = None if ticket.cancelled else self.view.train(recipe, {"healthy": healthy}, ticket)
        if run is None:
            return None
        self.tried |= {recipe: run} | ({bare: untreated} if untreated else {})
        answer = Answer(run, healthy, untreated or None, early, diagnose(run))
        self.view.show(answer.runs, answer.words)
        self.view.verdict.value = verdict(answer)
        return answer

    def gaps_by_samples(self, _, ax):
        """The gap of every run of this panel over its number of images; a ring marks the current one."""
        for recipe, run in self.tried.items():
            treated = recipe != self.base.but(samples=recipe.samples, seed=recipe.seed)
            style = {"marker": "^", "color": plots.OTHERS[2]} if treated else {"marker": "o", "color": plots.OTHERS[0]}
            words = f"_{recipe.samples:,} images{', treated' if treated else ''}"
            ax.plot([recipe.samples], [run.gap[-1]], linestyle="none", markersize=7, label=words, **style)
            if recipe == self.recipe:
                ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": "black"}
                ax.plot([recipe.samples], [run.gap[-1]], "o", **ring)
        plots.healthy_band(ax, "gap")
        ax.set_xscale("log")
        ax.set_xlim(30, 20_000)
        ax.margins(y=0.15)
        ax.set_xlabel("training images")
        ax.set_ylabel("gap at the end (nats)")
        ax.set_title("Tried so far (triangle: treated)", fontsize="medium", loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        return ax


def gap_with_turn(runs: dict[str, Run], ax):
    """`plots.gap` with the step at which early stopping would stop; the untreated run as a line only."""
    bare = runs.get(UNTREATED)
    runs = {label: run for label, run in runs.items() if label != UNTREATED}
    plots.gap(runs, ax)
    if not runs:  # the first of them is still training
        return ax
    if bare is not None:  # in the colour of the third line, as in the other panes
        ax.plot(bare["val_step"], bare["val_loss"], color=plots.OTHERS[2], linewidth=1.4, label=UNTREATED)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, LOWEST), 4 * high)  # room for the text above
    turn = reading(run := list(runs.values())[-1], turning_point(run))
    ax.axvline(turn.step, color="black", linewidth=0.9, linestyle=(0, (4, 3)))
    late = turn.step > run["val_step"][-1] / 2
    place = {"xytext": (-5 if late else 5, -2), "textcoords": "offset points", "va": "top"}
    place |= {"ha": "right" if late else "left", "fontsize": "small"}
    ax.annotate(f"lowest at step {turn.step}", (turn.step, 0.99), xycoords=ax.get_xaxis_transform(), **place)
    ax.set_title("Gap, shaded (dotted: training)", fontsize="medium", loc="left")
    return ax


LIVE[gap_with_turn] = LIVE[plots.gap]


def verdict(answer: Answer) -> str:
    """The gap with its evidence, the effect of the treatment, and the diagnosis."""
    head = ("", "step", "training accuracy", "validation accuracy", "validation loss", "gap")
    places = {"at the end": -1, "lowest validation loss": turning_point(answer.run)}
    rows = [_row(words, reading(answer.run, place)) for words, place in places.items()]
    rows += [_row("untreated, at the end", answer.before)] if answer.untreated else []
    rows += [_row(f"{answer.plenty}, at the end", reading(answer.healthy, -1))]
    words = f"<p><b>{html.escape(answer.judgement)}.</b> {html.escape(answer.treatment)}</p>"
    numbers = table(head, rows, chosen=int(answer.early))
    return text_html(words + numbers + verdict_html(answer.diagnoses))


def _row(words: str, one: Reading) -> tuple[str, ...]:
    accuracies = f"{one.train_accuracy:.1%}", f"{one.val_accuracy:.1%}"
    return words, str(one.step), *accuracies, f"{one.val_loss:.2f}", f"{one.gap:.2f}"
