"""The fork panel: go back to a step of a sick run, change something there, and compare with the original run."""

import functools
from dataclasses import dataclass

import ipywidgets
import numpy as np

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.drawing import plots
from labkit.errors import RecipeError
from labkit.failures.mode import FailureMode, Knob
from labkit.panels.base_panel import Panel
from labkit.panels.controls import LAYOUT, WIDE, Control, button, stop_button
from labkit.panels.live_plots import Pane, text_html
from labkit.panels.live_view import Frames, LiveView, first_cause, in_short
from labkit.panels.panel_state import PanelState
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.training import run_store
from labkit.training.fork import fork
from labkit.training.parts import plain_step
from labkit.training.recipe import Recipe

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
ABOUT = "Choose a step, change something there, and see how the same run would have continued."


@dataclass(frozen=True)
class Counterfactual:
    """The intervention, its step, and the resulting run; `run` is None where nothing was changed."""

    at: int
    changes: dict
    original: Run
    run: Run | None = None
    diagnoses: list[Diagnosis] | None = None

    @property
    def words(self) -> str:
        if self.run is None:
            return f"Original: {in_short(self.original)}. {readings(self.original, self.at)}"
        done = f"From step {self.at} on: {changes_as_text(self.changes)}."
        runs = f"Original: {in_short(self.original)}. Forked: {in_short(self.run)}."
        return f"{done} {runs} Diagnosis: {first_cause(self.diagnoses)}."


def fork_panel(thing: "str | Recipe | FailureMode" = "corrupt_batch") -> "ForkPanel":
    """A panel for the sick run of a failure mode (or its name), or for any recipe."""
    return ForkPanel(PanelState.read(thing))


class ForkPanel(Panel):
    """Interventions on the left; the step and both runs on the right. Without a browser: `respond`."""

    def __init__(self, setting: PanelState):
        self.recipe, self.at = setting.recipe, 0
        shows = setting.mode.shows if setting.mode else "update_ratio"
        third = plots.update_ratio if shows == "grad_norm_total" else GRADIENT_NORM
        panes = [plots.losses, plots.validation, third, plots.instrument(shows)]
        title = f"Fork the timeline: {setting.mode.title if setting.mode else 'your recipe'}"
        super().__init__(title, ABOUT, LiveView([self.marked(pane) for pane in panes]))
        self.view.widget.children = (self.step, *self.view.widget.children)  # above the plots, as wide as they are
        self.closed_with = (self.fix_loop,)  # shown only where the training loop has a bug
        self.add_class("labkit-fork")
        self.start()

    # --- what a control does ---

    def respond(self, at: int | None = None, **changes) -> Counterfactual:
        """Go to this step, make these changes (`skip` too; others stay), and return the result once it is shown."""
        self.set(at, changes)
        return self.answer_now()

    def answer(self, ticket: Ticket) -> Counterfactual | None:
        """The original with the step marked, and the fork if anything is changed; None if it was cancelled."""
        original = self.view.train(self.recipe, {}, ticket)
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

    def forked(self, asked: Counterfactual, ticket: Ticket) -> Run | None:
        """The forked run, remembered or trained now; None if it was cancelled."""
        done = {"at": asked.at, **dict(sorted(asked.changes.items()))}
        run = run_store.in_memory.get(self.recipe, done)
        if run is None:
            view, steps = self.view, self.recipe.steps
            view.progress.bar_style, view.progress.value, view.progress.max = "", 0, steps
            view.picture.say(f"Training again to step {asked.at}, then on: {changes_as_text(asked.changes)}.")
            view.picture.begin({"original": asked.original}, steps, redraw=True)
            options = {"each_step": Frames(view, self.recipe, ticket), "progress": False, "errors": "record"}
            run = fork(self.recipe, **done, **options)
            if not ticket.cancelled:
                run_store.in_memory.put(self.recipe, run, done)
        return None if ticket.cancelled else run

    def show(self, thing: dict[str, Run], found: Counterfactual, diagnoses: list[Diagnosis]) -> None:
        self.view.show(thing, found.words, diagnoses)
        self.now.value = text_html(f"<b>Step {found.at}</b> of the original" + table(found.original, found.at))

    def reach(self, original: Run) -> None:
        """A run that ended early can be forked only up to its last step."""
        last = max(0, len(original) - 1)
        if self.step.max != last:
            with self.moves():
                self.step.max = last
            self.at = self.step.value

    @property
    def changes(self) -> dict:
        """Every control that differs from the recipe."""
        summary = self.recipe.summary()
        found = {name: control.value for name, control in self.knobs.items() if control.value != summary[name]}
        found |= {"skip": self.skip.value} if self.skip.value else {}
        return found | ({"step": plain_step} if self.fix_loop.value else {})

    def set(self, at: int | None, changes: dict) -> None:
        """Move the controls, without training."""
        known = {*self.knobs, "skip", "step"}
        if unknown := set(changes) - known:
            raise RecipeError(f"this panel can set {', '.join(sorted(known))}, not {', '.join(sorted(unknown))}")
        with self.moves():
            if at is not None:
                self.step.value = self.at = at
            self.skip.value = changes.get("skip", self.skip.value)
            self.fix_loop.value = "step" in changes or self.fix_loop.value
            for name in self.knobs.keys() & changes.keys():
                self.knobs[name].value = changes[name]

    def undo(self) -> None:
        """Take back every intervention."""
        self.set(None, {name: self.recipe.summary()[name] for name in self.knobs} | {"skip": 0})
        with self.moves():
            self.fix_loop.value = False
        self.start()

    def marked(self, pane: Pane) -> Pane:
        """The same plot with a line at the step of the fork, if its x axis is the steps."""
        if pane in (plots.gradient_bars, plots.dead_units, plots.activation_sizes, plots.origin):
            return pane

        @functools.wraps(pane)
        def draw(thing, ax=None):
            ax = pane(thing, ax=ax)
            ax.axvline(self.at, color="black", linewidth=1, linestyle=(0, (4, 2)))
            return ax

        return draw

    # --- the controls ---

    def make_controls(self) -> None:
        summary = self.recipe.summary()
        self.knobs = {knob.name: Control(knob, summary[knob.name], type(self.recipe)) for knob in KNOBS}
        common = {"style": WIDE, "layout": LAYOUT}
        last = self.recipe.steps - 1
        self.step = ipywidgets.IntSlider(value=0, min=0, max=last, description="fork at step", **common)
        self.step.add_class("labkit-step")
        self.skip = ipywidgets.IntSlider(value=0, min=0, max=MOST_SKIPPED, description="skip batches", **common)
        self.skip.tooltip = "the number of batches to leave out from that step on"
        self.skip.add_class("labkit-skip")
        self.fix_loop = ipywidgets.Checkbox(value=False, description="fix the training loop", **common)
        self.fix_loop.add_class("labkit-fix-loop")
        for widget in (self.step, self.skip, self.fix_loop, *(control.widget for control in self.knobs.values())):
            widget.observe(lambda _: self.touched(), "value")
        self.undo_button = button("Undo", "undo", "take back every intervention", self.undo)
        self.stop_button = stop_button(self.stop)
        self.now = ipywidgets.HTML()
        self.now.add_class("labkit-now")

    def left(self) -> list:
        fix_loop = [self.fix_loop] if self.recipe.step is not plain_step else []
        buttons = ipywidgets.HBox([self.undo_button, self.stop_button])
        intervene = ipywidgets.HTML("<b>From that step on</b>")
        knobs = [control.widget for control in self.knobs.values()]
        return [self.now, intervene, *knobs, self.skip, *fix_loop, buttons]

    def touched(self) -> None:
        if not self.moving:
            self.at = self.step.value
            self.start()


def changes_as_text(changes: dict) -> str:
    """'lr 0.01, skip 1 batch'."""
    words = []
    for name, value in changes.items():
        if name == "skip":
            words.append(f"skip {value} batch{'es' if value > 1 else ''}")
        elif name == "step":
            words.append("training loop fixed")
        else:
            words.append(f"{name} {'off' if value is None else value}")
    return ", ".join(words)


def at_step(run: Run, step: int) -> dict[str, str]:
    """What the instruments recorded at one step; of a trace per layer, the largest value."""
    there = {words: name for name, words in READINGS.items() if name in run and step < len(run)}
    return {words: f"{float(np.max(run[name][step])):.3g}" for words, name in there.items()}


def readings(run: Run, step: int) -> str:
    return f"At step {step}: " + ", ".join(f"{words} {value}" for words, value in at_step(run, step).items()) + "."


def table(run: Run, step: int) -> str:
    rows = "".join(f"<tr><td>{words}</td><td><b>{value}</b></td></tr>" for words, value in at_step(run, step).items())
    return f"<table style='margin:0 0 0.4em 1em'>{rows}</table>"
