"""The treatment panel: `labkit.treat` on a program, with its arms drawn while they run."""

import html
import math
import time
from collections.abc import Callable
from typing import Any

from labkit.diagnosis.treatment.answer import Treatment
from labkit.diagnosis.treatment.arms import DONE, UNTREATED, Arm
from labkit.diagnosis.treatment.experiment import is_treated
from labkit.diagnosis.treatment.judgement import direction
from labkit.diagnosis.treatment.plots import frame
from labkit.diagnosis.treatment.treat import RUNS, treat
from labkit.errors import RecipeError
from labkit.panels.base_panel import Panel, table
from labkit.panels.controls import run_button, stop_button
from labkit.panels.live_plots import text_html
from labkit.panels.live_view import LiveView
from labkit.panels.worker import Ticket

ABOUT = (
    "Runs your program, diagnoses it, and tries prescriptions beside the untreated program and a placebo. "
    "Each line is one arm; what is reported was seen to work on several seeds."
)
NEXT_FRAME = 0.5  # seconds between two frames: an arm takes seconds or more
SHOWN = 8  # arms in the legend and in the table
SIZE = (7.4, 3.6)


class Arms:
    """What the panel draws: the curve of every arm so far."""

    def __init__(self) -> None:
        self.losses: dict[Arm, list[tuple[int, float]]] = {}
        self.results: dict[Arm, list[tuple[int, dict[str, float]]]] = {}
        self.status: dict[Arm, str] = {}

    def note(self, arm: Arm, event: dict) -> None:
        if event["kind"] == "step":
            self.losses.setdefault(arm, []).append((event["step"], event["loss"]))
        elif event["kind"] == "validation":
            self.results.setdefault(arm, []).append((event["step"], event["results"]))
        else:
            self.status[arm] = "running" if event["kind"] == "start" else event["status"]

    @property
    def measure(self) -> str:
        """The first validation result that is not a loss; the loss of a step where nothing was validated."""
        names = [name for rows in self.results.values() for _, values in rows[:1] for name in values]
        known = [name for name in names if direction(name) is not None]
        return min(known, key=lambda name: "loss" in name.lower(), default="")

    def curve(self, arm: Arm) -> tuple[list[int], list[float]]:
        name = self.measure
        rows = [(at, values[name]) for at, values in self.results.get(arm, []) if name in values]
        rows = rows if name else self.losses.get(arm, [])
        rows = [(at, value) for at, value in rows if value is not None and math.isfinite(value)]
        return [at for at, _ in rows], [value for _, value in rows]


def arms_pane(thing: Arms, ax: Any = None) -> Any:
    """The measure of every arm over the steps: untreated and placebo in colours of their own."""
    colours = {UNTREATED: "C3", "placebo": "C1"}
    names: list[str] = []
    special: list[float] = []  # what is compared: the axis is for these, whatever an arm that diverged has reached
    for arm in thing.status:
        if not (is_treated(arm) or arm.is_placebo or not arm.names):
            continue  # a range test
        steps, values = thing.curve(arm)
        special += values if arm.is_placebo or not arm.names or thing.status[arm] == DONE else []
        word = "placebo" if arm.is_placebo else arm.words
        label = word if word not in names and len(names) < SHOWN else None
        names += [word] if label else []
        ax.plot(steps, values, ".-", linewidth=1.4, color=colours.get(word), label=label)
    frame(ax, special)
    ax.set_xlabel("step")
    ax.set_title(f"validation {thing.measure}" if thing.measure else "loss", fontsize="medium")
    return ax


def treat_panel(program: Callable | str, **options: Any) -> "TreatPanel":
    """A panel that treats a program, a function of `watch` or a script; the options are those of `labkit.treat`."""
    if not (callable(program) or isinstance(program, str)):
        raise RecipeError(f"treat_panel: expected a function of `watch` or a script, got {type(program).__name__}")
    return TreatPanel(program, options)


class TreatPanel(Panel):
    """Run and Stop on the left with the arms so far; their curves and the answer on the right."""

    def __init__(self, program: Any, options: dict[str, Any]):
        self.program, self.options = program, options
        self.result: Treatment | None = None
        super().__init__("Let labkit try", ABOUT, LiveView([arms_pane], columns=1, size=SIZE), width="16em")
        self.start()

    def respond(self) -> Treatment:
        """Treat now, and return the answer once it is shown."""
        return self.answer_now()

    def make_controls(self) -> None:
        self.run_button, self.stop_button = run_button(self.start), stop_button(self.stop)

    def left(self) -> list:
        return [self.run_button, self.stop_button]

    def answer(self, ticket: Ticket) -> Treatment | None:
        """Treat the program, drawing what happens; after Stop, what is known by then."""
        shown, latest = Arms(), [0.0]
        self.view.progress.bar_style, self.view.progress.value = "", 0
        budget = self.options.get("budget", RUNS)
        self.view.progress.max = budget if isinstance(budget, int) else RUNS
        self.view.picture.say("Running the program untreated.")

        def listen(arm: Arm, event: dict) -> None:
            if ticket.cancelled:
                raise KeyboardInterrupt  # ends the arm, and keeps what is known
            shown.note(arm, event)
            if event["kind"] in ("start", "end") or time.monotonic() - latest[0] > NEXT_FRAME:
                latest[0] = time.monotonic()
                self.frame(shown, arm, ticket)

        try:
            self.result = treat(self.program, progress=False, on_event=listen, **self.options)
        except KeyboardInterrupt:  # stopped before the untreated program had ended: nothing is known
            return None
        self.view.show(shown, first_line(self.result))
        self.view.verdict.value = text_html(f"<pre>{html.escape(str(self.result))}</pre>")
        return self.result

    def frame(self, shown: Arms, arm: Arm, ticket: Ticket) -> None:
        self.view.picture.whole(shown)
        with self.view.speaking:
            if ticket.cancelled:
                return
            ended = [each for each, status in shown.status.items() if status != "running"]
            self.view.progress.value = min(len(ended), self.view.progress.max)
            self.view.picture.say(f"Run {len(ended) + 1}, seed {arm.seed}: {arm.words}.")
            rows = [(each.words, str(each.seed), status) for each, status in list(shown.status.items())[-SHOWN:]]
            self.view.verdict.value = text_html(table(("arm", "seed", "status"), rows))


def first_line(treatment: Treatment) -> str:
    return " ".join(str(treatment).split("\ndiagnosis")[0].split())
