"""The learning-rate panel: drag the learning rate along the curve of a range test, and see the run it gives."""

import math
from dataclasses import dataclass

import ipywidgets

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.drawing import plots
from labkit.failures.mode import FailureMode, Knob
from labkit.panels.base_panel import Panel
from labkit.panels.chart import plots_of
from labkit.panels.controls import Control, button, stop_button
from labkit.panels.live_plots import stacked
from labkit.panels.live_view import YOURS, LiveView, first_cause, in_short
from labkit.panels.panel_state import PanelState
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.tools.lr_finder import RangeTest, find_lr
from labkit.training.loop import few_threads
from labkit.training.recipe import Recipe
from labkit.training.state import TrainingState, seeded

LOW, HIGH = 1e-5, 10.0  # of the range test, and of the slider below it
WIDTH = 420  # pixels of the curve; the slider below it begins and ends where its x axis does
UNDER_THE_AXIS = {"description_width": "42px"}
ABOUT = "Each point of the curve is one step at that learning rate. Drag the slider: the run on the right uses yours."


@dataclass(frozen=True)
class LearningRateAnswer:
    """The range test, and the run with the learning rate that was chosen on it."""

    lr: float
    found: RangeTest
    run: Run
    diagnoses: list[Diagnosis]

    @property
    def words(self) -> str:
        run = f"Learning rate {self.lr:.2g}, {self.place}: {in_short(self.run)}."
        return f"{run} Diagnosis: {first_cause(self.diagnoses)}."

    @property
    def place(self) -> str:
        """Where on the curve the learning rate lies, in words."""
        suggestion, end = self.found.suggestion, self.found.diverged_at
        if end and self.lr >= end:
            return f"beyond {end:.2g}, where the range test diverges"
        if not suggestion:
            return "where the range test suggests no learning rate"
        factor = self.lr / suggestion
        if 0.5 <= factor <= 2:
            return f"near the suggestion of {suggestion:.2g}"
        times = f"{factor:.2g} times" if factor > 1 else f"1/{1 / factor:.2g} of"
        return f"{times} the suggestion of {suggestion:.2g}"


def lr_panel(thing: "str | Recipe | FailureMode" = "learning_rate_too_high") -> "LearningRatePanel":
    """A panel for the sick net of a failure mode (or its name), or for any recipe."""
    return LearningRatePanel(PanelState.read(thing))


def range_test(recipe: Recipe) -> RangeTest:
    """The range test of a recipe's own net, data and optimizer; the same for the same seed."""
    state = TrainingState(recipe)
    with seeded(recipe.seed), few_threads():
        data = tuple(state.data.train)
        batch = min(recipe.batch_size, len(data[1]))
        return find_lr(state.model, recipe.loss, data, state.optimizer, low=LOW, high=HIGH, batch_size=batch)


def marked_curve(thing: tuple[RangeTest, float], ax=None):
    """The range test with the chosen learning rate marked by a broad pale line behind the curve."""
    found, lr = thing
    ax = plots.range_test(found, ax)
    ax.set_xlim(LOW, HIGH)
    ax.axvline(lr, color="black", alpha=0.3, linewidth=5, zorder=0, label=f"yours: {lr:.2g}")
    ax.legend(edgecolor="none", fontsize=8, loc="lower left")
    return ax


class LearningRatePanel(Panel):
    """The range test above a slider on the left, the run on the right. Without a browser: `respond`."""

    found: RangeTest | None = None

    def __init__(self, setting: PanelState):
        self.recipe = setting.recipe
        self.curve = plots_of([marked_curve], columns=1, size=(WIDTH / 100, 3.0))
        self.curve.widget.add_class("labkit-curve")
        view = LiveView([plots.losses, plots.validation, plots.update_ratio, plots.gradient_bars])
        title = f"Find the learning rate: {setting.mode.title if setting.mode else 'your recipe'}"
        super().__init__(title, ABOUT, view, width=f"{WIDTH}px")
        self.add_class("labkit-lr")
        self.start()

    def stored(self) -> dict[str, str]:
        """The range test above the run."""
        drawn = [each.png() for each in (self.curve, self.plots) if each.finished.thing is not None]
        return {"text/plain": self.plots.words} | stacked(drawn)

    # --- what the slider does ---

    def respond(self, lr: float) -> LearningRateAnswer:
        """Set this learning rate, train, and return the result once it is shown."""
        self.move(lr)
        return self.answer_now()

    def answer(self, ticket: Ticket) -> LearningRateAnswer | None:
        """Run the range test once, mark the learning rate on it, and train with it; None if it was cancelled."""
        recipe = self.recipe.but(lr=self.lr.value)
        if self.found is None:
            self.view.picture.say("Range test: up to 100 steps while the learning rate rises.")
            self.found = range_test(self.recipe)
            self.name_buttons()
            self.curve.say(range_test_as_text(self.found))
        self.curve.whole((self.found, recipe.lr))
        beside = self.reference(ticket)
        run = None if ticket.cancelled else self.view.train(recipe, beside, ticket)
        if run is None:
            return None
        answer = LearningRateAnswer(recipe.lr, self.found, run, diagnose(run))
        self.view.show(beside | {YOURS: run}, answer.words, answer.diagnoses)
        return answer

    def reference(self, ticket: Ticket) -> dict[str, Run]:
        """The run with the suggested learning rate, to compare with; empty if none is suggested."""
        if not self.found.suggestion or ticket.cancelled:
            return {}
        lr = self.on_slider(self.found.suggestion)
        run = self.view.train(self.recipe.but(lr=lr), {}, ticket)
        return {f"suggested: {lr:g}": run} if run else {}

    def on_slider(self, lr: float) -> float:
        """The nearest learning rate that the slider can show: a browser would move it there anyway."""
        step = self.lr.widget.step
        return float(f"{10 ** (step * round(math.log10(lr) / step)):.2g}")

    def move(self, lr: float) -> None:
        """Set the slider, without training."""
        self.recipe.but(lr=lr)  # raises here if it is refused
        with self.moves():
            self.lr.value = lr

    def go(self, lr: float | None) -> None:
        """What a button does: go to this learning rate, if the range test found one."""
        if lr:
            self.move(self.on_slider(lr))
            self.start()

    # --- the controls ---

    def make_controls(self) -> None:
        self.lr = Control(Knob("lr", (LOW, HIGH), log=True), self.recipe.lr)
        self.lr.widget.description, self.lr.widget.style = "lr", UNDER_THE_AXIS
        self.lr.widget.readout = False  # the legend of the curve has the number, and the slider is as long as the axis
        self.lr.widget.layout.margin = "2px 8px 2px 2px"
        self.lr.widget.continuous_update = True  # the mark follows the slider; only the newest run is trained
        self.lr.widget.observe(lambda _: None if self.moving else self.start(), "value")
        rates = {
            "suggested": ("Suggested", "the learning rate that the range test suggests", lambda: self.found.suggestion),
            "lower": ("A tenth", "a tenth of the learning rate that is set", lambda: max(LOW, self.lr.value / 10)),
            "higher": ("Ten times", "ten times the learning rate that is set", lambda: min(HIGH, self.lr.value * 10)),
            "diverging": ("Diverging", "where the range test diverges", lambda: self.found.diverged_at),
        }
        self.rates = {
            name: button(words, "", tip, lambda rate=rate: self.found and self.go(rate()))
            for name, (words, tip, rate) in rates.items()
        }
        for name, made in self.rates.items():
            made.add_class(f"labkit-lr-{name}")
        self.stop_button = stop_button(self.stop)

    def name_buttons(self) -> None:
        for name, rate in (("suggested", self.found.suggestion), ("diverging", self.found.diverged_at)):
            self.rates[name].disabled = not rate
            self.rates[name].description = f"{name.capitalize()} {rate:.2g}" if rate else f"{name.capitalize()}: none"

    def left(self) -> list:
        wrap = {"flex_flow": "row wrap"}
        buttons = ipywidgets.Box([*self.rates.values(), self.stop_button], layout=wrap)
        return [self.curve.widget, self.lr.widget, buttons, self.curve.status]


def range_test_as_text(found: RangeTest) -> str:
    """What a range test found."""
    if not found.suggestion:
        return "No learning rate lowered the loss in the range test."
    end = f", and diverges at {found.diverged_at:.2g}" if found.diverged_at else ", and does not diverge"
    return f"The range test suggests {found.suggestion:.2g}{end}."
