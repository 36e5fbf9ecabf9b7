"""The fork panel: scrub to a step of a sick run, intervene there, and see the counterfactual beside the original."""

import functools
import html
from dataclasses import dataclass

import ipywidgets
import numpy as np

from labkit.drawing import plots
from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.failures.mode import FailureMode, Knob
from labkit.training.fork import fork
from labkit.training.rules import RecipeError
from labkit.training.parts import plain_step
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.panels import run_memory as memory
from labkit.panels.controls import LAYOUT, WIDE, Control
from labkit.panels.knob_panel import button, in_short
from labkit.panels.live_plots import Pane, text_html
from labkit.panels.panel_state import Situation
from labkit.panels.live_view import Frames, Stage, close
from labkit.panels.worker import Ticket

KNOBS = (
    Knob("lr", (1e-4, 10.0), log=True),
    Knob("clip", (None, 0.1, 0.5, 1.0, 5.0)),
    Knob("activation", ()),
)
GRADIENT_NORM = functools.partial(plots.compare, name="grad_norm_total", log=True)
MOST_SKIPPED = 20  # batches; more than that is another data set
READINGS = {
    "loss": "loss",
    "lr": "learning rate",
    "grad_norm_total": "gradient norm",
    "update_ratio": "update / weight",
}


@dataclass(frozen=True)
class Counterfactual:
    """What was done at which step, and what came of it; without an intervention there is no other run."""

    at: int
    changes: dict
    original: Run
    run: Run | None = None
    diagnoses: list[Diagnosis] | None = None

    @property
    def words(self) -> str:
        if self.run is None:
            return f"Original: {in_short(self.original)}. {readings(self.original, self.at)}"
        verdict = self.diagnoses[0].title if self.diagnoses else "no failure shows"
        done = f"From step {self.at} on: {in_words(self.changes)}."
        return f"{done} Original: {in_short(self.original)}. Forked: {in_short(self.run)}. Diagnosis: {verdict}."


def fork_panel(thing: "str | Recipe | FailureMode" = "corrupt_batch") -> "ForkPanel":
    """A panel for the sick run of a failure mode (or its name), or for any recipe."""
    return ForkPanel(Situation.read(thing))


class ForkPanel(ipywidgets.VBox):
    """Interventions on the left; the step and what comes of it on the right. Without a browser: `respond`."""

    def __init__(self, situation: Situation):
        self.recipe, self.at = situation.recipe, 0
        shows = situation.mode.shows if situation.mode else "update_ratio"
        third = plots.update_ratio if shows == "grad_norm_total" else GRADIENT_NORM
        panes = [plots.losses, plots.validation, third, plots.instrument(shows)]
        self.stage = Stage([self.marked(pane) for pane in panes])
        self.moving = False
        self.make_controls()
        self.stage.widget.children = (self.step, *self.stage.widget.children)  # above the curves, as long as they are
        left = ipywidgets.VBox(self.left(), layout={"width": "21em", "flex": "0 0 auto"})
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "1em"}
        title = situation.mode.title if situation.mode else "your recipe"
        super().__init__([heading(title), ipywidgets.Box([left, self.stage.widget], layout=row)])
        self.add_class("labkit-panel")
        self.add_class("labkit-fork")
        self.start()

    # --- what a control does ---

    def respond(self, at: int | None = None, **changes) -> Counterfactual:
        """Go to this step, set these interventions (`skip` too; others stay), and show what comes of it; it waits."""
        self.stage.worker.stop()
        self.set(at, changes)
        return self.answer(Ticket())

    def start(self) -> None:
        self.stage.perform(self.answer)

    def stop(self) -> None:
        self.stage.stop()

    def answer(self, ticket: Ticket) -> Counterfactual | None:
        """The original with the step marked; and the fork, where anything is changed. None if it was given up."""
        original = self.stage.train(self.recipe, {}, ticket)
        if original is None:
            return None
        self.reach(original)
        found = Counterfactual(self.at, self.changes, original)
        if not found.changes:
            self.show({"original": original}, found, diagnose(original))
            return found
        run = self.forked(found, ticket)
        if run is None:
            return None
        found = Counterfactual(found.at, found.changes, original, run, diagnose(run))
        self.show({"original": original, "forked": run}, found, found.diagnoses)
        return found

    def forked(self, wish: Counterfactual, ticket: Ticket) -> Run | None:
        """The counterfactual run, remembered or trained now."""
        key = (self.recipe, wish.at, tuple(sorted(wish.changes.items(), key=str)))
        run = memory.remembered(key)
        if run is None:
            stage, steps = self.stage, self.recipe.steps
            stage.progress.bar_style, stage.progress.value, stage.progress.max = "", 0, steps
            stage.picture.say(f"Training again to step {wish.at}, then on: {in_words(wish.changes)}.")
            stage.picture.begin({"original": wish.original}, steps, anew=True)
            options = {"each_step": Frames(stage, self.recipe, ticket), "progress": False, "errors": "record"}
            run = fork(self.recipe, at=wish.at, **wish.changes, **options)
            if not ticket.cancelled:
                memory.remember(key, run)
        return None if ticket.cancelled else run

    def show(self, thing: dict[str, Run], found: Counterfactual, diagnoses: list[Diagnosis]) -> None:
        self.stage.show(thing, found.words, diagnoses)
        self.now.value = text_html(f"<b>Step {found.at}</b> of the original" + table(found.original, found.at))

    def reach(self, original: Run) -> None:
        """A run that broke off can be forked as far as it went, and no further."""
        last = max(0, len(original) - 1)
        if self.step.max != last:
            self.moving = True
            self.step.max, self.moving = last, False
            self.at = self.step.value

    @property
    def changes(self) -> dict:
        """What is set to something else than the recipe says."""
        summary = self.recipe.summary()
        found = {name: control.value for name, control in self.knobs.items() if control.value != summary[name]}
        found |= {"skip": self.skip.value} if self.skip.value else {}
        return found | ({"step": plain_step} if self.mend.value else {})

    def set(self, at: int | None, changes: dict) -> None:
        """Move the controls, without training."""
        known = {*self.knobs, "skip", "step"}
        if unknown := set(changes) - known:
            raise RecipeError(f"this panel can set {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}")
        self.moving = True
        try:
            if at is not None:
                self.step.value = self.at = at
            self.skip.value = changes.get("skip", self.skip.value)
            self.mend.value = "step" in changes or self.mend.value
            for name in self.knobs.keys() & changes.keys():
                self.knobs[name].value = changes[name]
        finally:
            self.moving = False

    def undo(self) -> None:
        """Back to no intervention."""
        self.set(None, {name: self.recipe.summary()[name] for name in self.knobs} | {"skip": 0})
        self.moving, self.mend.value, self.moving = True, False, False
        self.start()

    def marked(self, pane: Pane) -> Pane:
        """The same drawing with a line at the step of the fork, where it is drawn over steps."""
        if pane in (plots.gradient_bars, plots.dead_units, plots.activation_sizes, plots.origin):
            return pane

        @functools.wraps(pane)
        def draw(thing, ax=None):
            ax = pane(thing, ax=ax)
            ax.axvline(self.at, color="black", linewidth=1, linestyle=(0, (4, 2)))
            return ax

        return draw

    def close(self) -> None:
        """Stop, and take the panel out of the notebook."""
        self.stage.end()
        for part in (self, self.mend):  # which is shown only where there is something to mend
            close(part)

    # --- the controls ---

    def make_controls(self) -> None:
        summary = self.recipe.summary()
        self.knobs = {knob.name: Control(knob, summary[knob.name]) for knob in KNOBS}
        common = {"style": WIDE, "layout": LAYOUT}
        last = self.recipe.steps - 1
        self.step = ipywidgets.IntSlider(value=0, min=0, max=last, description="fork at step", **common)
        self.step.add_class("labkit-step")
        self.skip = ipywidgets.IntSlider(value=0, min=0, max=MOST_SKIPPED, description="skip batches", **common)
        self.skip.tooltip = "so many batches from that step on are never seen"
        self.skip.add_class("labkit-skip")
        self.mend = ipywidgets.Checkbox(value=False, description="mend the training loop", style=WIDE, layout=LAYOUT)
        self.mend.add_class("labkit-mend")
        for widget in (self.step, self.skip, self.mend, *(control.widget for control in self.knobs.values())):
            widget.observe(lambda _: self.touched(), "value")
        self.undo_button = button("Undo", "undo", "take back every intervention", self.undo)
        self.stop_button = button("Stop", "stop", "give up the run that is going on", self.stop)
        self.now = ipywidgets.HTML()
        self.now.add_class("labkit-now")

    def left(self) -> list:
        mend = [self.mend] if self.recipe.step is not plain_step else []
        buttons = ipywidgets.HBox([self.undo_button, self.stop_button])
        intervene = ipywidgets.HTML("<b>From that step on</b>")
        knobs = [control.widget for control in self.knobs.values()]
        return [self.now, intervene, *knobs, self.skip, *mend, buttons]

    def touched(self) -> None:
        if not self.moving:
            self.at = self.step.value
            self.start()


def heading(title: str) -> ipywidgets.HTML:
    about = "Choose a step, change something there, and see how the same run would have gone on."
    return ipywidgets.HTML(text_html(f"<h3 style='margin:0'>Fork the timeline: {html.escape(title)}</h3>{about}"))


def in_words(changes: dict) -> str:
    """'lr 0.01, skip 1 batch'."""
    words = []
    for name, value in changes.items():
        if name == "skip":
            words.append(f"skip {value} batch{'es' if value > 1 else ''}")
        elif name == "step":
            words.append("the training loop mended")
        else:
            words.append(f"{name} {'off' if value is None else value}")
    return ", ".join(words)


def at_step(run: Run, step: int) -> dict[str, str]:
    """What the instruments showed at one step; of a trace per layer, where it was largest."""
    there = {words: name for name, words in READINGS.items() if name in run and step < len(run)}
    return {words: f"{float(np.max(run[name][step])):.3g}" for words, name in there.items()}


def readings(run: Run, step: int) -> str:
    return f"At step {step}: " + ", ".join(f"{words} {value}" for words, value in at_step(run, step).items()) + "."


def table(run: Run, step: int) -> str:
    rows = "".join(f"<tr><td>{words}</td><td><b>{value}</b></td></tr>" for words, value in at_step(run, step).items())
    return f"<table style='margin:0 0 0.4em 1em'>{rows}</table>"
