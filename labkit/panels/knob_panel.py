"""The knob panel: turn a knob, and see the failure come and go beside the healthy run."""

import dataclasses
import html
from dataclasses import dataclass

import ipywidgets

from labkit.diagnosis.diagnose import Diagnosis, diagnose
from labkit.errors import RecipeError
from labkit.failures.mode import DATASETS, FailureMode
from labkit.panels.base_panel import Panel
from labkit.panels.controls import LAYOUT, STANDARD, WIDE, Control, run_button, stop_button
from labkit.panels.live_plots import panes_for, text_html
from labkit.panels.live_view import YOURS, LiveView, first_cause, in_short
from labkit.panels.panel_state import PLAIN, PanelState
from labkit.panels.worker import Ticket
from labkit.recording.run import Run
from labkit.training.recipe import Recipe, changes_in_words


@dataclass(frozen=True)
class Answer:
    """The runs of one setting, and the diagnosis."""

    run: Run
    healthy: Run
    diagnoses: list[Diagnosis]

    @property
    def words(self) -> str:
        """What the plots show, in a few short sentences: the status line."""
        runs = f"Your run: {in_short(self.run)}. Healthy: {in_short(self.healthy)}."
        return f"{runs} Diagnosis: {first_cause(self.diagnoses)}."


def knobs(thing: "str | Recipe | FailureMode" = "learning_rate_too_high") -> "KnobPanel":
    """A panel for a failure mode (or its name), for a recipe, or for a state copied from another panel."""
    return KnobPanel(PanelState.read(thing))


class KnobPanel(Panel):
    """A failure mode with all its knobs, beside its healthy twin. Without a browser: `respond`."""

    def __init__(self, setting: PanelState):
        self.setting = setting
        mode = setting.mode
        title, about = (mode.title, mode.symptom) if mode else ("Your recipe", "Compared with the healthy baseline.")
        super().__init__(title, about, LiveView(panes_for(mode.shows if mode else "update_ratio")))
        self.turn(setting)
        self.start()

    # --- what a knob does ---

    def respond(self, **changes) -> Answer:
        """Turn these knobs, train, and return the result once it is shown."""
        self.turn(self.setting.but(**changes))
        return self.answer_now()

    def answer(self, ticket: Ticket) -> Answer | None:
        """Train and show the healthy twin and the recipe that is set; None if it was cancelled."""
        setting = self.setting
        recipe = setting.recipe
        healthy = self.view.train(setting.twin, {}, ticket)
        run = healthy and self.view.train(recipe, {"healthy": healthy}, ticket)
        if run is None:
            return None
        answer = Answer(run, healthy, diagnose(run))
        self.view.show({"healthy": healthy, YOURS: run}, answer.words, answer.diagnoses)
        if not ticket.cancelled:  # draw the background for the next run now, while nobody waits for it
            self.view.picture.begin({"healthy": healthy}, recipe.steps)
        return answer

    @property
    def state(self) -> str:
        """The setting as a short string; `labkit.knobs(state)` opens it again."""
        return str(self.setting)

    def turn(self, setting: PanelState) -> None:
        """Set every control to this setting, without training."""
        recipe = setting.recipe  # raises here if it is refused, before anything in the panel has changed
        self.setting = setting
        with self.moves():
            for name, control in self.knobs.items():
                control.value = recipe.summary()[name]
            if setting.mode:
                # A selected button cannot be pressed again: once a knob is turned, none is selected and all work.
                self.presets.value = None if setting.changes else role_of(setting.preset)
                self.dataset.value = setting.dataset
                if setting.preset in dict(self.treatment.options).values():
                    self.treatment.value = setting.preset
            self.show_state()

    def show_state(self) -> None:
        changed = changes_in_words(self.setting.recipe, self.setting.twin).replace("->", "→")
        self.changed.value = text_html(f"Changed from healthy: <b>{html.escape(changed)}</b>")
        self.paste.value, self.code.value = self.state, self.setting.code()

    # --- the controls ---

    def make_controls(self) -> None:
        recipe, mode = self.setting.recipe, self.setting.mode
        own = {knob.name: knob for knob in (mode.knobs if mode else STANDARD[:8])}
        every = own | {knob.name: knob for knob in STANDARD if knob.name not in own}
        summary = recipe.summary()
        self.own = list(own)
        self.knobs = {name: Control(knob, summary[name], type(recipe)) for name, knob in every.items()}
        for name, control in self.knobs.items():
            control.widget.observe(lambda _, name=name: self.turned(name), "value")
        if mode:
            self.make_presets(mode)
        self.run_button, self.stop_button = run_button(self.start), stop_button(self.stop)
        self.changed = ipywidgets.HTML()
        self.paste = ipywidgets.Text(description="state", style=WIDE, layout=LAYOUT, continuous_update=False)
        self.paste.tooltip = "all settings as a string: copy it, or paste another one here"
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
        treatments = [(words, key) for key, (words, _) in self.setting.presets.items() if role_of(key) == "cure"]
        self.treatment = ipywidgets.Dropdown(options=treatments, description="treatment", style=WIDE, layout=LAYOUT)
        self.treatment.observe(lambda _: self.preset_chosen(self.treatment.value), "value")
        there = [name for name in DATASETS if mode.on(name)]
        self.dataset = ipywidgets.Dropdown(options=there, description="data set", style=WIDE, layout=LAYOUT)
        self.dataset.add_class("labkit-dataset")
        self.dataset.observe(lambda _: self.preset_chosen(self.setting.preset), "value")

    def left(self) -> list:
        """From the top: presets, the mode's own knobs, Run and Stop, then folded: the other knobs, and the code."""
        mode = self.setting.mode
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        more = ipywidgets.VBox([control.widget for name, control in self.knobs.items() if name not in self.own])
        code = ipywidgets.VBox([self.paste, self.code])
        folded = ipywidgets.Accordion([more, code], titles=("More knobs", "Copy as code"), selected_index=None)
        presets = [self.presets, self.treatment, self.dataset] if mode else []
        return [*presets, *(self.knobs[name].widget for name in self.own), buttons, self.changed, folded]

    # --- the user moved a control ---

    def turned(self, name: str) -> None:
        if not self.moving:
            self.attempt(lambda: self.setting.but(**{name: self.knobs[name].value}))

    def preset_chosen(self, preset: str | None) -> None:
        if self.moving or preset is None:
            return
        if preset == "cure":
            preset = self.treatment.value
        chosen = {"preset": preset, "dataset": self.dataset.value, "changes": {}}
        self.attempt(lambda: dataclasses.replace(self.setting, **chosen))

    def pasted(self) -> None:
        if not self.moving:
            self.attempt(lambda: self.same_mode(PanelState.read(self.paste.value)))

    def same_mode(self, setting: PanelState) -> PanelState:
        if setting.mode is not self.setting.mode:
            mine = self.setting.mode.name if self.setting.mode else PLAIN
            raise RecipeError(f"this panel shows {mine!r}; open that state with labkit.knobs({str(setting)!r})")
        return setting


def role_of(preset: str) -> str:
    """Which of the three buttons a preset belongs to."""
    return preset if preset in ("healthy", "sick") else "cure"
