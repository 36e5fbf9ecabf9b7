"""The learning-rate panel: drag the rate along the curve of a range test, and see the run it gives."""

import html
import math
from dataclasses import dataclass

import ipywidgets

from labkit.drawing import plots
from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.failures.mode import FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.tools.lr_finder import RangeTest, find_lr
from labkit.training.loop import few_threads
from labkit.panels.controls import Control
from labkit.panels.knob_panel import YOURS, button, in_short
from labkit.panels.live_plots import Picture, text_html
from labkit.panels.panel_state import Situation
from labkit.panels.live_view import Stage, close
from labkit.panels.worker import Ticket
from labkit.training.state import Workbench, seeded

LOW, HIGH = 1e-5, 10.0  # of the range test, and of the slider below it
WIDTH = 420  # pixels of the curve; the slider below begins and ends where its axis does
UNDER_THE_AXIS = {"description_width": "57px"}


@dataclass(frozen=True)
class RateAnswer:
    """The range test, and the run of the rate that was chosen on it."""

    lr: float
    found: RangeTest
    run: Run
    diagnoses: list[Diagnosis]

    @property
    def words(self) -> str:
        verdict = self.diagnoses[0].title if self.diagnoses else "no failure shows"
        return f"Learning rate {self.lr:.2g}, {self.place}: {in_short(self.run)}. Diagnosis: {verdict}."

    @property
    def place(self) -> str:
        """Where on the curve the rate lies, in words."""
        suggestion, end = self.found.suggestion, self.found.diverged_at
        if end and self.lr >= end:
            return f"beyond {end:.2g}, where the range test diverges"
        if not suggestion:
            return "on a curve that speaks for no rate"
        factor = self.lr / suggestion
        if 0.5 <= factor <= 2:
            return f"near the suggestion of {suggestion:.2g}"
        times = f"{factor:.2g} times" if factor > 1 else f"1/{1 / factor:.2g} of"
        return f"{times} the suggestion of {suggestion:.2g}"


def lr_panel(thing: "str | Recipe | FailureMode" = "learning_rate_too_high") -> "RatePanel":
    """A panel for a failure mode (or its name), whose sick net is tested, or for any recipe."""
    return RatePanel(Situation.read(thing))


def range_test(recipe: Recipe) -> RangeTest:
    """The range test of a recipe's own net, data and optimizer; the same for the same seed."""
    bench = Workbench(recipe)
    with seeded(recipe.seed), few_threads():
        data = tuple(bench.data.train)
        batch = min(recipe.batch_size, len(data[1]))
        return find_lr(bench.model, recipe.loss, data, bench.optimizer, low=LOW, high=HIGH, batch_size=batch)


def marked_curve(thing: tuple[RangeTest, float], ax=None):
    """The range test with the chosen rate on it, as a broad line that hides nothing."""
    found, lr = thing
    ax = plots.range_test(found, ax)
    ax.set_xlim(LOW, HIGH)
    ax.axvline(lr, color="black", alpha=0.3, linewidth=5, zorder=0, label=f"your rate {lr:.2g}")
    ax.legend(edgecolor="none", fontsize=8, loc="lower left")
    return ax


class RatePanel(ipywidgets.VBox):
    """The curve and its slider on the left, the run on the right. Without a browser: `respond`."""

    found: RangeTest | None = None

    def __init__(self, situation: Situation):
        self.recipe = situation.recipe
        self.stage = Stage([plots.losses, plots.validation, plots.update_ratio, plots.gradient_bars])
        self.curve = Picture([marked_curve], columns=1, size=(WIDTH / 100, 3.0))
        self.curve.image.add_class("labkit-curve")
        self.moving = False
        self.make_controls()
        left = ipywidgets.VBox(self.left(), layout={"width": f"{WIDTH}px", "flex": "0 0 auto"})
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "1em"}
        title = situation.mode.title if situation.mode else "your recipe"
        super().__init__([heading(title), ipywidgets.Box([left, self.stage.widget], layout=row)])
        self.add_class("labkit-panel")
        self.add_class("labkit-lr")
        self.start()

    # --- what the slider does ---

    def respond(self, lr: float) -> RateAnswer:
        """Go to this rate, train, and show what came of it; it waits until that is done."""
        self.stage.worker.stop()
        self.move(lr)
        return self.answer(Ticket())

    def start(self) -> None:
        self.stage.perform(self.answer)

    def stop(self) -> None:
        self.stage.stop()

    def answer(self, ticket: Ticket) -> RateAnswer | None:
        """Test the range once, mark the rate at once, and train with it; None if it was given up."""
        recipe = self.recipe.but(lr=self.lr.value)
        if self.found is None:
            self.stage.picture.say("Range test: a hundred steps with a rising rate.")
            self.found = range_test(self.recipe)
            self.name_buttons()
            self.curve.say(in_words(self.found))
        self.curve.whole((self.found, recipe.lr))
        beside = self.reference(ticket)
        run = None if ticket.cancelled else self.stage.train(recipe, beside, ticket)
        if run is None:
            return None
        answer = RateAnswer(recipe.lr, self.found, run, diagnose(run))
        self.stage.show(beside | {YOURS: run}, answer.words, answer.diagnoses)
        return answer

    def reference(self, ticket: Ticket) -> dict[str, Run]:
        """The run of the suggested rate, to compare with; nothing where no rate is suggested."""
        if not self.found.suggestion or ticket.cancelled:
            return {}
        lr = self.on_slider(self.found.suggestion)
        run = self.stage.train(self.recipe.but(lr=lr), {}, ticket)
        return {f"suggested: {lr:g}": run} if run else {}

    def on_slider(self, lr: float) -> float:
        """The rate nearest to this one that the slider can show: a browser moves it there in any case."""
        step = self.lr.widget.step
        return float(f"{10 ** (step * round(math.log10(lr) / step)):.2g}")

    def move(self, lr: float) -> None:
        """Set the slider, without training."""
        self.recipe.but(lr=lr)  # a rate that no recipe takes is refused here
        self.moving, self.lr.value, self.moving = True, lr, False

    def go(self, lr: float | None) -> None:
        """One of the buttons: to this rate, if the range test knows it."""
        if lr:
            self.move(self.on_slider(lr))
            self.start()

    def close(self) -> None:
        """Stop, and take the panel out of the notebook."""
        self.stage.end()
        close(self)

    # --- the controls ---

    def make_controls(self) -> None:
        self.lr = Control(Knob("lr", (LOW, HIGH), log=True), self.recipe.lr)
        self.lr.widget.description, self.lr.widget.style = "rate", UNDER_THE_AXIS
        self.lr.widget.readout = False  # the curve has it, and so the slider is as long as the axis
        self.lr.widget.continuous_update = True  # the mark on the curve goes with the hand; the newest run alone trains
        self.lr.widget.observe(lambda _: None if self.moving else self.start(), "value")
        rates = {
            "suggested": ("Suggested", "what the range test speaks for", lambda: self.found.suggestion),
            "lower": ("A tenth", "a tenth of the rate that is set", lambda: max(LOW, self.lr.value / 10)),
            "higher": ("Ten times", "ten times the rate that is set", lambda: min(HIGH, self.lr.value * 10)),
            "diverging": ("Diverging", "where the range test diverges", lambda: self.found.diverged_at),
        }
        self.rates = {
            name: button(words, "", tip, lambda rate=rate: self.found and self.go(rate()))
            for name, (words, tip, rate) in rates.items()
        }
        for name, made in self.rates.items():
            made.add_class(f"labkit-rate-{name}")
        self.stop_button = button("Stop", "stop", "give up the run that is going on", self.stop)

    def name_buttons(self) -> None:
        for name, rate in (("suggested", self.found.suggestion), ("diverging", self.found.diverged_at)):
            self.rates[name].disabled = not rate
            self.rates[name].description = f"{name.capitalize()} {rate:.2g}" if rate else f"{name.capitalize()}: none"

    def left(self) -> list:
        wrap = {"flex_flow": "row wrap"}
        buttons = ipywidgets.Box([*self.rates.values(), self.stop_button], layout=wrap)
        return [self.curve.image, self.lr.widget, buttons, self.curve.status]


def in_words(found: RangeTest) -> str:
    """What a range test found."""
    if not found.suggestion:
        return "No rate lowered the loss in the range test."
    end = f", and diverges at {found.diverged_at:.2g}" if found.diverged_at else ", and diverges nowhere"
    return f"The range test speaks for {found.suggestion:.2g}{end}."


def heading(title: str) -> ipywidgets.HTML:
    about = (
        "Each point of the curve is one step at that rate. Drag yours along it: the run beside it is trained with it."
    )
    return ipywidgets.HTML(text_html(f"<h3 style='margin:0'>Find the rate: {html.escape(title)}</h3>{about}"))
