"""What the panels around a few recipes share: presets, knobs, Run and Stop on the left of a stage."""

import html
from collections.abc import Sequence

import ipywidgets

from labkit.failures.mode import Knob
from labkit.training.rules import RecipeError
from labkit.training.recipe import Recipe
from labkit.panels.controls import Control
from labkit.panels.knob_panel import button
from labkit.panels.live_plots import text_html
from labkit.panels.live_view import Stage, close
from labkit.panels.worker import Ticket

# The same in JupyterLab, Notebook and Voila, in both themes: numbers in columns, long words on a button in two lines.
STYLE = """<style>
.labkit-panel table {border-collapse: collapse; margin: 0.3em 0}
.labkit-panel th, .labkit-panel td {padding: 0.1em 1.2em 0.1em 0; text-align: left; vertical-align: top}
.labkit-panel th {font-weight: 600; border-bottom: 1px solid currentColor}
.labkit-panel p {margin: 0.3em 0}
.labkit-panel tr.labkit-chosen {font-weight: 700}
.labkit-card .jupyter-button {white-space: normal; height: auto; min-height: 2.9em; line-height: 1.25; padding: 0.2em}
</style>"""


class RecipePanel(ipywidgets.VBox):
    """One recipe at a time, from a preset and the knobs. What is trained and shown for it, a subclass says in `answer`.

    Without a browser: `respond`.
    """

    def __init__(self, title: str, about: str, presets: dict[str, Recipe], knobs: Sequence[Knob], stage: Stage):
        self.recipes, self.stage = presets, stage
        self.moving = False  # the panel itself moves its controls, and nobody asks for a run
        self.make_controls(knobs)
        left = ipywidgets.VBox(self.left(), layout={"width": "21em", "flex": "0 0 auto"})
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "1em"}
        super().__init__([heading(title, about), ipywidgets.Box([left, stage.widget], layout=row)])
        self.add_class("labkit-panel")
        self.turn(next(iter(presets.values())))
        self.start()

    # --- what a knob does ---

    def respond(self, preset: str | None = None, **changes):
        """Go to this preset, turn these knobs, train, and show what came of it; it waits until that is done."""
        recipe = self.recipe if preset is None else self.preset(preset)
        self.turn(recipe.but(**changes))
        self.stage.worker.stop()
        return self.answer(Ticket())

    def answer(self, ticket: Ticket):
        raise NotImplementedError(f"{type(self).__name__} does not say what it trains")

    def preset(self, name: str) -> Recipe:
        if name not in self.recipes:
            raise RecipeError(f"expected one of {', '.join(self.recipes)}, got {name!r}")
        return self.recipes[name]

    def start(self) -> None:
        """Train what is set now, in the panel's thread; a run that is going on is given up."""
        self.stage.perform(self.answer)

    def stop(self) -> None:
        self.stage.stop()

    def turn(self, recipe: Recipe) -> None:
        """Set every control to this recipe, without training."""
        self.recipe, self.moving = recipe, True
        try:
            for name, control in self.knobs.items():
                control.value = recipe.summary()[name]
            self.presets.value = self.chosen
        finally:
            self.moving = False

    @property
    def chosen(self) -> str | None:
        """The preset that is set, if nothing was turned since."""
        return next((name for name, recipe in self.recipes.items() if recipe == self.recipe), None)

    def close(self) -> None:
        """Stop, and take the panel out of the notebook."""
        self.stage.end()
        close(self)

    # --- the controls ---

    def make_controls(self, knobs: Sequence[Knob]) -> None:
        base = next(iter(self.recipes.values())).summary()
        self.knobs = {knob.name: Control(knob, base[knob.name]) for knob in knobs}
        for name, control in self.knobs.items():
            control.widget.observe(lambda _, name=name: self.turned(name), "value")
        self.presets = ipywidgets.ToggleButtons(options=list(self.recipes), style={"button_width": "9.6em"})
        self.presets.add_class("labkit-presets")
        self.presets.tooltips = [f"set everything to: {name}" for name in self.recipes]
        self.presets.observe(lambda _: self.preset_chosen(), "value")
        self.run_button = button("Run", "play", "train what is set now", self.start, "primary")
        self.run_button.add_class("labkit-run")
        self.stop_button = button("Stop", "stop", "give up the run that is going on", self.stop)
        self.stop_button.add_class("labkit-stop")

    def left(self) -> list:
        """From the top: presets, knobs, Run and Stop."""
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        return [self.presets, *(control.widget for control in self.knobs.values()), buttons]

    def turned(self, name: str) -> None:
        if not self.moving:
            self.attempt(lambda: self.recipe.but(**{name: self.knobs[name].value}))

    def preset_chosen(self) -> None:
        if not self.moving and self.presets.value is not None:
            self.attempt(lambda: self.preset(self.presets.value))

    def attempt(self, make) -> None:
        """Go to this recipe and train it; where it is refused, say why."""
        try:
            self.turn(make())
        except RecipeError as error:
            self.stage.worker.stop()
            return self.stage.refuse(error)
        self.start()


def heading(title: str, about: str) -> ipywidgets.HTML:
    words = f"<h3 style='margin:0'>{html.escape(title)}</h3>{html.escape(about)}"
    return ipywidgets.HTML(STYLE + text_html(words))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """A small HTML table; one row can stand out."""
    cells = "".join(f"<th scope='col'>{html.escape(word)}</th>" for word in head)
    lines = []
    for number, row in enumerate(rows):
        mark = " class='labkit-chosen'" if number == chosen else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(word)}</td>" for word in row) + "</tr>")
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
