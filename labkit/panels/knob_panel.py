"""The knob panel: turn a knob, and see the failure come and go beside the healthy run."""

import dataclasses
import html
from dataclasses import dataclass

import ipywidgets

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.failures.mode import DATASETS, FailureMode
from labkit.training.rules import RecipeError
from labkit.training.recipe import Recipe
from labkit.diagnosis.report import changes_in_words
from labkit.recording.run import Run
from labkit.panels.controls import LAYOUT, STANDARD, WIDE, Control
from labkit.panels.live_plots import panes_for, text_html
from labkit.panels.panel_state import PLAIN, Situation
from labkit.panels.live_view import Stage, close
from labkit.panels.worker import Ticket

YOURS = "your run"


@dataclass(frozen=True)
class Answer:
    """What came of a setting."""

    run: Run
    healthy: Run
    diagnoses: list[Diagnosis]

    @property
    def words(self) -> str:
        """What the picture shows, in a few short sentences."""
        verdict = self.diagnoses[0].title if self.diagnoses else "no failure shows"
        return f"Your run: {in_short(self.run)}. Healthy: {in_short(self.healthy)}. Diagnosis: {verdict}."


def in_short(run: Run) -> str:
    """'400 steps, loss 0.12, validation 94.5 %'."""
    loss = [f"loss {run['loss'][-1]:.3g}"] if len(run) else []
    ending = [run.facts["stopped"]] if run.facts["stopped"] else []
    accuracy = [f"validation {run.accuracy:.1%}"] if run.accuracy is not None else []
    return ", ".join([f"{len(run)} steps", *loss, *accuracy, *ending])


def knobs(thing: "str | Recipe | FailureMode" = "learning_rate_too_high") -> "KnobPanel":
    """A panel for a failure mode (or its name), for a recipe, or for a state that another panel gave."""
    return KnobPanel(Situation.read(thing))


class KnobPanel(ipywidgets.VBox):
    """Controls on the left; progress, picture, status and verdict on the right. Without a browser: `respond`."""

    def __init__(self, situation: Situation):
        self.situation = situation
        mode = situation.mode
        self.stage = Stage(panes_for(mode.shows if mode else "update_ratio"))
        self.moving = False  # the panel itself moves its controls, and nobody asks for a run
        self.make_controls()
        left = ipywidgets.VBox(self.left(), layout={"width": "21em", "flex": "0 0 auto"})
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "1em"}
        super().__init__([heading(mode), ipywidgets.Box([left, self.stage.widget], layout=row)])
        self.add_class("labkit-panel")
        self.turn(situation)
        self.start()

    # --- what a knob does ---

    def respond(self, **changes) -> Answer:
        """Turn these knobs, train, and show what came of it; it waits until that is done."""
        self.turn(self.situation.but(**changes))
        self.stage.worker.stop()
        return self.answer(Ticket())

    def start(self) -> None:
        """Train what is set now, in the panel's thread; a run that is going on is given up."""
        self.stage.perform(self.answer)

    def stop(self) -> None:
        self.stage.stop()

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train the twin and the setting, unless they are remembered, and show them; None if it was given up."""
        situation = self.situation
        recipe = situation.recipe
        healthy = self.stage.train(situation.twin, {}, ticket)
        run = healthy and self.stage.train(recipe, {"healthy": healthy}, ticket)
        if run is None:
            return None
        answer = Answer(run, healthy, diagnose(run))
        self.stage.show({"healthy": healthy, YOURS: run}, answer.words, answer.diagnoses)
        if not ticket.cancelled:  # drawn now, while nobody waits, the background is there when the next knob is turned
            self.stage.picture.begin({"healthy": healthy}, recipe.steps)
        return answer

    @property
    def state(self) -> str:
        """The whole setting as a short string; `labkit.knobs(state)` opens it again."""
        return str(self.situation)

    def turn(self, situation: Situation) -> None:
        """Set every control to this situation, without training."""
        recipe = situation.recipe  # a refused one is an error here, and the panel stays as it was
        self.situation, self.moving = situation, True
        try:
            for name, control in self.knobs.items():
                control.value = recipe.summary()[name]
            if situation.mode:
                # A button that is down cannot be pressed: once a knob is turned none is, and each leads back.
                self.presets.value = None if situation.changes else role_of(situation.preset)
                self.dataset.value = situation.dataset
                if situation.preset in dict(self.treatment.options).values():
                    self.treatment.value = situation.preset
            self.show_state()
        finally:
            self.moving = False

    def show_state(self) -> None:
        changed = changes_in_words(self.situation.recipe, self.situation.twin).replace("->", "→")
        self.changed.value = text_html(f"Changed from the healthy twin: <b>{html.escape(changed)}</b>")
        self.paste.value, self.code.value = self.state, self.situation.code()

    def close(self) -> None:
        """Stop, and take the panel out of the notebook."""
        self.stage.end()
        close(self)

    # --- the controls ---

    def make_controls(self) -> None:
        recipe, mode = self.situation.recipe, self.situation.mode
        own = {knob.name: knob for knob in (mode.knobs if mode else STANDARD[:8])}
        every = own | {knob.name: knob for knob in STANDARD if knob.name not in own}
        summary = recipe.summary()
        self.own = list(own)
        self.knobs = {name: Control(knob, summary[name]) for name, knob in every.items()}
        for name, control in self.knobs.items():
            control.widget.observe(lambda _, name=name: self.turned(name), "value")
        if mode:
            self.make_presets(mode)
        self.run_button = button("Run", "play", "train what is set now", self.start, "primary")
        self.stop_button = button("Stop", "stop", "give up the run that is going on", self.stop)
        self.changed = ipywidgets.HTML()
        self.paste = ipywidgets.Text(description="state", style=WIDE, layout=LAYOUT, continuous_update=False)
        self.paste.tooltip = "the whole setting as a string: copy it, or paste another one here"
        self.paste.add_class("labkit-state")
        self.paste.observe(lambda _: self.pasted(), "value")
        self.code = ipywidgets.Textarea(rows=7, layout={"width": "100%"})
        self.code.tooltip = "the same run as Python"
        self.code.add_class("labkit-code")

    def make_presets(self, mode: FailureMode) -> None:
        self.presets = ipywidgets.ToggleButtons(
            options=[("Healthy", "healthy"), ("Sick", "sick"), ("Cure", "cure")], style={"button_width": "6.2em"}
        )
        self.presets.add_class("labkit-presets")
        self.presets.observe(lambda _: self.preset_chosen(self.presets.value), "value")
        treatments = [(words, key) for key, (words, _) in self.situation.presets.items() if role_of(key) == "cure"]
        self.treatment = ipywidgets.Dropdown(options=treatments, description="treatment", style=WIDE, layout=LAYOUT)
        self.treatment.observe(lambda _: self.preset_chosen(self.treatment.value), "value")
        there = [name for name in DATASETS if mode.on(name)]
        self.dataset = ipywidgets.Dropdown(options=there, description="data set", style=WIDE, layout=LAYOUT)
        self.dataset.add_class("labkit-dataset")
        self.dataset.observe(lambda _: self.preset_chosen(self.situation.preset), "value")

    def left(self) -> list:
        """From the top: presets, the mode's own knobs, Run and Stop, all the other knobs, and the code."""
        mode = self.situation.mode
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        more = ipywidgets.VBox([control.widget for name, control in self.knobs.items() if name not in self.own])
        code = ipywidgets.VBox([self.paste, self.code])
        folded = ipywidgets.Accordion([more, code], titles=("More knobs", "Copy as code"), selected_index=None)
        presets = [self.presets, self.treatment, self.dataset] if mode else []
        return [*presets, *(self.knobs[name].widget for name in self.own), buttons, self.changed, folded]

    # --- somebody touched one ---

    def turned(self, name: str) -> None:
        if not self.moving:
            self.attempt(lambda: self.situation.but(**{name: self.knobs[name].value}))

    def preset_chosen(self, preset: str | None) -> None:
        if self.moving or preset is None:
            return
        if preset == "cure":
            preset = self.treatment.value
        chosen = {"preset": preset, "dataset": self.dataset.value, "changes": {}}
        self.attempt(lambda: dataclasses.replace(self.situation, **chosen))

    def pasted(self) -> None:
        if not self.moving:
            self.attempt(lambda: self.same_mode(Situation.read(self.paste.value)))

    def same_mode(self, situation: Situation) -> Situation:
        if situation.mode is not self.situation.mode:
            mine = self.situation.mode.name if self.situation.mode else PLAIN
            raise RecipeError(f"this panel shows {mine!r}; open the other one with labkit.knobs({str(situation)!r})")
        return situation

    def attempt(self, make) -> None:
        """Go to this situation and train it; where it is refused, say why."""
        try:
            self.turn(make())
        except (RecipeError, KeyError) as error:
            self.stage.worker.stop()
            return self.stage.refuse(error)
        self.start()


def role_of(preset: str) -> str:
    """Which of the three buttons a preset belongs to."""
    return preset if preset in ("healthy", "sick") else "cure"


def heading(mode: FailureMode | None) -> ipywidgets.HTML:
    title, about = (mode.title, mode.symptom) if mode else ("Your recipe", "Beside the lab's healthy baseline.")
    return ipywidgets.HTML(text_html(f"<h3 style='margin:0'>{html.escape(title)}</h3>{html.escape(about)}"))


def button(words: str, icon: str, tooltip: str, pressed, style: str = "") -> ipywidgets.Button:
    made = ipywidgets.Button(description=words, icon=icon, tooltip=tooltip, button_style=style)
    made.layout.width = "auto"
    made.on_click(lambda _: pressed())
    return made
