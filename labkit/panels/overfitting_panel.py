"""The overfitting panel: shrink the data and watch the gap open; turn the regularisers and see how far they go."""

import html
from dataclasses import dataclass

import ipywidgets
import numpy as np

from labkit.drawing import plots
from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.failures.mode import Knob
from labkit.training.recipe import Recipe
from labkit.course.poster.content import BANDS
from labkit.recording.run import Run
from labkit.panels.controls import WIDE
from labkit.panels.knob_panel import YOURS, in_short
from labkit.panels.base_panel import RecipePanel, table
from labkit.panels.live_plots import LIVE, text_html
from labkit.panels.live_view import Stage, verdict_html
from labkit.panels.worker import Ticket

BASE = Recipe()
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
NOTHING = 1e-3  # a training loss below this is nothing, and would flatten the picture
UNTREATED = "nothing done"  # the same images without any of the regularisers
ABOUT = (
    "A net that has few images learns them by heart: its loss on them falls to nothing, while the loss on images it "
    "has never seen rises. The shaded area between the two is the gap. Shrink the data and it opens; then see how much "
    "of it each remedy takes back."
)


@dataclass(frozen=True)
class Reading:
    """A run at one of its evaluations: at the end, or where the validation loss was lowest."""

    step: int
    gap: float
    seen: float  # accuracy on images of the training set
    unseen: float  # accuracy on validation images
    loss: float  # validation loss


def turning_point(run: Run) -> int:
    """The evaluation with the lowest validation loss: where early stopping would have stopped."""
    losses = np.where(np.isfinite(run["val_loss"]), run["val_loss"], np.inf)
    return int(np.argmin(losses))


def reading(run: Run, place: int) -> Reading:
    traces = ("val_step", "probe_accuracy", "val_accuracy", "val_loss")
    step, seen, unseen, loss = (run[name][place] for name in traces)
    return Reading(int(step), float(run.gap[place]), float(seen), float(unseen), float(loss))


@dataclass(frozen=True)
class Answer:
    """What came of a setting: the run, the one with all the data, and the one with the same data and nothing done."""

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
        """The same images with nothing done, to the end."""
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
        """Whether the gap is open, beside the usual one."""
        high = BANDS["gap"][1]
        if not np.isfinite(self.now.gap):
            return "The gap cannot be read: the losses are not finite"
        state = "open" if self.now.gap > high else "closed"
        return f"The gap is {state}: {self.now.gap:.2f} nats (usual: up to {high:g})"

    @property
    def treatment(self) -> str:
        """What the remedies did to the gap and to the accuracy; empty where nothing was done."""
        if self.untreated is None and not self.early:
            return ""
        points = 100 * (self.now.unseen - self.before.unseen)
        change = f"from {self.before.gap:.2f} to {self.now.gap:.2f}"
        missing = 100 * (reading(self.healthy, -1).unseen - self.now.unseen)
        bring = f"what {self.plenty} bring"
        rest = f"{missing:.1f} points are still missing to {bring}" if missing > 2 else f"that is as good as {bring}"
        return f"What you did takes the gap {change} and the validation accuracy by {points:+.1f} points; {rest}."

    @property
    def words(self) -> str:
        """What the picture shows, in a few short sentences."""
        turn = reading(self.run, turning_point(self.run))
        verdict = self.diagnoses[0].title if self.diagnoses else "no failure shows"
        return (
            f"Your run: {in_short(self.run)}. {self.judgement}. Its validation loss is lowest at step {turn.step}. "
            f"Diagnosis: {verdict}."
        )


def overfitting_panel() -> "OverfittingPanel":
    """Samples and regularisers, the gap shaded, and what each remedy takes back."""
    return OverfittingPanel()


class OverfittingPanel(RecipePanel):
    """Without a browser: `respond(samples=100, early=True)`."""

    def __init__(self, presets: dict[str, Recipe] | None = None):
        self.tried: dict[Recipe, Run] = {}  # every setting of this panel, for the picture of gaps over samples
        presets = presets or PRESETS
        self.base = next(iter(presets.values()))
        stage = Stage([gap_with_turn, plots.validation, plots.gap_line, self.gaps_by_samples])
        super().__init__("Overfitting: open the gap, close it", ABOUT, presets, KNOBS, stage)

    def make_controls(self, knobs) -> None:
        super().make_controls(knobs)
        self.early = ipywidgets.Checkbox(description="early stopping", style=WIDE, layout={"width": "auto"})
        self.early.tooltip = "read the run where its validation loss was lowest, as if training had stopped there"
        self.early.add_class("labkit-early")
        self.early.observe(lambda _: None if self.moving else self.start(), "value")

    def left(self) -> list:
        *above, buttons = super().left()
        return [*above, self.early, buttons]

    def respond(self, preset: str | None = None, early: bool | None = None, **changes) -> Answer:
        if early is not None:
            self.moving = True
            self.early.value = early
            self.moving = False
        return super().respond(preset, **changes)

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train all the data, the bare setting and the setting, unless remembered; None if it was given up."""
        recipe, early = self.recipe, self.early.value
        healthy = self.stage.train(self.base.but(seed=recipe.seed), {}, ticket)
        bare = recipe.but(
            **{name: getattr(self.base, name) for name in ("dropout", "weight_decay", "augment", "width")}
        )
        untreated = healthy and bare != recipe and self.stage.train(bare, {"healthy": healthy}, ticket)
        run = None if ticket.cancelled else self.stage.train(recipe, {"healthy": healthy}, ticket)
        if run is None:
            return None
        self.tried |= {recipe: run} | ({bare: untreated} if untreated else {})
        answer = Answer(run, healthy, untreated or None, early, diagnose(run))
        self.stage.show(answer.runs, answer.words)
        self.stage.verdict.value = verdict(answer)
        return answer

    def gaps_by_samples(self, _, ax):
        """The gap of every setting tried in this panel over its number of images; the present one is ringed."""
        for recipe, run in self.tried.items():
            treated = recipe != self.base.but(samples=recipe.samples, seed=recipe.seed)
            style = {"marker": "^", "color": plots.OTHERS[2]} if treated else {"marker": "o", "color": plots.OTHERS[0]}
            ax.plot([recipe.samples], [run.gap[-1]], linestyle="none", markersize=7, **style)
            if recipe == self.recipe:
                ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": "black"}
                ax.plot([recipe.samples], [run.gap[-1]], "o", **ring)
        ax.axhspan(*BANDS["gap"], color=plots.BAND, alpha=0.15, linewidth=0, zorder=0)
        ax.set_xscale("log")
        ax.set_xlim(30, 20_000)
        ax.margins(y=0.15)
        ax.set_xlabel("training images")
        ax.set_ylabel("gap at the end (nats)")
        ax.set_title("Tried so far (triangle: treated)", fontsize="medium", loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        return ax


def gap_with_turn(runs: dict[str, Run], ax):
    """`plots.gap`, and the step at which early stopping would have stopped; of the untreated run the line alone."""
    bare = runs.get(UNTREATED)
    runs = {label: run for label, run in runs.items() if label != UNTREATED}
    plots.gap(runs, ax)
    if not runs:  # the first of them is still training
        return ax
    if bare is not None:  # in the colour of the third line, as in the other panes
        ax.plot(bare["val_step"], bare["val_loss"], color=plots.OTHERS[2], linewidth=1.4, label=UNTREATED)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, NOTHING), 4 * high)  # room for the words above
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
    """The gap with its evidence, what the remedies did, and the diagnosis."""
    head = ("", "read at step", "training right", "validation right", "validation loss", "gap")
    places = {"at the end": -1, "validation loss lowest": turning_point(answer.run)}
    rows = [_row(words, reading(answer.run, place)) for words, place in places.items()]
    rows += [_row("nothing done, at the end", answer.before)] if answer.untreated else []
    rows += [_row(f"{answer.plenty}, at the end", reading(answer.healthy, -1))]
    words = f"<p><b>{html.escape(answer.judgement)}.</b> {html.escape(answer.treatment)}</p>"
    numbers = table(head, rows, chosen=int(answer.early))
    return text_html(words + numbers + verdict_html(answer.diagnoses))


def _row(words: str, one: Reading) -> tuple[str, ...]:
    return words, str(one.step), f"{one.seen:.1%}", f"{one.unseen:.1%}", f"{one.loss:.2f}", f"{one.gap:.2f}"
