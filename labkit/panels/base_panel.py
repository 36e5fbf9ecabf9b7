"""What panels share: controls on the left of a LiveView, Run and Stop, and a heading; RecipePanel adds presets."""

import contextlib
import html
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ipywidgets

from labkit.drawing.html import WAIT
from labkit.errors import RecipeError
from labkit.failures.mode import Knob
from labkit.panels.controls import Control, run_button, stop_button
from labkit.panels.live_plots import Plots, text_html
from labkit.panels.live_view import LiveView, close
from labkit.panels.worker import Ticket
from labkit.training.recipe import Recipe

LONGEST = 300  # seconds that a stored panel waits for its run: ten times what the slowest takes
ARROW = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E"
    "%3Cpath d='M5 7l4 4 4-4' fill='none' stroke='%23888' stroke-width='2'/%3E%3C/svg%3E"
)
# The same in JupyterLab, Notebook, Voila and VS Code, in both themes: aligned columns, long sliders, an arrow of menus
# that is seen on dark and on light, and long labels on two lines of a card's button. VS Code shows widgets in light
# colours on white whatever its theme is, with a blue on which white words are too pale (3.1 to 1).
STYLE = """<style>
.labkit-panel table {border-collapse: collapse; margin: 0.3em 0}
.labkit-panel th, .labkit-panel td {padding: 0.1em 1.2em 0.1em 0; text-align: left; vertical-align: top}
.labkit-panel th {font-weight: 600}
.labkit-panel thead th {border-bottom: 1px solid currentColor}
.labkit-panel p {margin: 0.3em 0}
.labkit-panel .labkit-progress {height: 12px; margin: 0}
.labkit-panel .labkit-progress .progress {height: 5px; border-radius: 3px}
.labkit-panel .widget-html {margin-top: 0; margin-bottom: 0}
.labkit-panel tr.labkit-chosen {font-weight: 700}
.labkit-panel .labkit-verdict {margin-top: 4px}
.labkit-panel .widget-readout {min-width: 3.8em}
.labkit-panel .labkit-presets .widget-toggle-button {margin-bottom: 3px}
.labkit-panel select, .labkit-menus select {background-image: url("ARROW")}
.labkit-gallery .labkit-card .jupyter-button {white-space: normal; height: auto; min-height: 2.9em; line-height: 1.25;
  padding: 0.2em}
[data-jp-theme-light=false] .labkit-gallery .labkit-card img {filter: invert(0.87) hue-rotate(180deg)}
.cell-output-ipywidget-background .labkit-panel {--jp-brand-color1: #1976d2}
@media (max-width: 600px) {
  .labkit-panel .labkit-controls {width: 100% !important}
  .labkit-panel .labkit-cell, .labkit-panel .labkit-tick {font-size: 10px; overflow: visible}
}
.labkit-no-charts {max-height: 0; overflow: hidden; animation: labkit-no-charts 0s 10s forwards}
.labkit-panel:has(.labkit-chart, img.labkit-picture) .labkit-no-charts {display: none}
@keyframes labkit-no-charts {to {max-height: 20em}}
</style>""".replace("ARROW", ARROW)
# Seen after ten seconds in which no chart appeared.
NO_CHARTS = """<div class="labkit-no-charts"><b>No charts?</b> This page could not load the front end of anywidget. To
get them as images, run <code>%env LABKIT_CHARTS=picture</code> in a cell, and then this cell again.</div>"""


class Stored(ipywidgets.VBox):
    """A panel with plots. A notebook that is read without widgets shows its status line.

    It shows the plots too, as an image, if the run had finished when the cell ran, or the panel was told to wait.
    """

    def __init__(self, children: Sequence[ipywidgets.Widget]):
        super().__init__([*children, ipywidgets.HTML(STYLE + NO_CHARTS)])
        self.add_class("labkit-panel")

    @property
    def plots(self) -> Plots:
        raise NotImplementedError(f"{type(self).__name__} does not say which plots it shows")

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        if os.environ.get(WAIT):
            self.settle()
        return super()._repr_mimebundle_(**options) | self.stored()

    def stored(self) -> dict[str, str]:
        """Words and picture for readers without widgets."""
        return self.plots.stored()

    def settle(self) -> None:
        """Wait until what it trains is shown."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it waits for")


class Panel(Stored):
    """A heading; below it the controls on the left and a LiveView on the right.

    A subclass makes its controls in `make_controls`, orders them in `left`, and trains and shows in `answer`.
    """

    closed_with: Sequence[ipywidgets.Widget] = ()  # widgets of the panel that may not be among its children

    def __init__(self, title: str, about: str, view: LiveView, width: str = "21em", gap: str = "1em"):
        self.view = view
        self.moving = False  # True while the panel itself moves its controls, which must not start a run
        self.make_controls()
        left = ipywidgets.VBox(self.left(), layout={"width": width, "max_width": "100%", "flex": "0 0 auto"})
        left.add_class("labkit-controls")
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": gap}
        super().__init__([heading(title, about), ipywidgets.Box([left, view.widget], layout=row)])

    @property
    def plots(self) -> Plots:
        return self.view.picture

    def settle(self) -> None:
        self.view.worker.wait(LONGEST)

    def make_controls(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not make its controls")

    def left(self) -> list[ipywidgets.Widget]:
        raise NotImplementedError(f"{type(self).__name__} does not say which controls stand on its left")

    def answer(self, ticket: Ticket) -> Any:
        """Train and show what is set now; None if the ticket was cancelled on the way."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it trains")

    def turn(self, setting: Any) -> None:
        """Set every control to this setting, without training."""
        raise NotImplementedError(f"{type(self).__name__} cannot be set as a whole")

    def start(self) -> None:
        """Train and show what is set now, in the panel's thread; a run that is still training is cancelled."""
        self.view.perform(self.answer)

    def stop(self) -> None:
        """Cancel the run that is training, and say so."""
        self.view.stop()

    def answer_now(self) -> Any:
        """The same as `start`, in the caller's thread: it returns when the result is shown."""
        self.view.worker.stop()
        return self.answer(Ticket())

    def attempt(self, make: Callable[[], Any]) -> None:
        """Go to the setting that `make` returns and train it; if it is refused, say why in the panel."""
        try:
            self.turn(make())
        except (RecipeError, KeyError) as error:
            self.view.worker.stop()
            return self.view.refuse(error)
        self.start()

    @contextlib.contextmanager
    def moves(self) -> Iterator[None]:
        """Inside it the program moves the controls, and no run starts."""
        self.moving = True
        try:
            yield
        finally:
            self.moving = False

    def close(self) -> None:
        """Stop, and remove the panel from the notebook."""
        self.view.end()
        for widget in (self, *self.closed_with):
            close(widget)


class RecipePanel(Panel):
    """Presets above knobs that change one recipe. A subclass trains and shows it in `answer`.

    Without a browser: `respond`.
    """

    def __init__(self, title: str, about: str, presets: dict[str, Recipe], knobs: Sequence[Knob], view: LiveView):
        self.recipes, self.offered = presets, knobs
        super().__init__(title, about, view)
        self.turn(next(iter(presets.values())))
        self.start()

    def respond(self, preset: str | None = None, **changes: Any) -> Any:
        """Choose this preset, turn these knobs, train, and return the result once it is shown."""
        recipe = self.recipe if preset is None else self.preset(preset)
        self.turn(recipe.but(**changes))
        return self.answer_now()

    def preset(self, name: str) -> Recipe:
        if name not in self.recipes:
            raise RecipeError(f"expected one of {', '.join(self.recipes)}, got {name!r}")
        return self.recipes[name]

    def turn(self, setting: Recipe) -> None:
        """Set every control to this recipe, without training."""
        self.recipe = setting
        with self.moves():
            for name, control in self.knobs.items():
                control.value = setting.summary()[name]
            self.presets.value = self.chosen

    @property
    def chosen(self) -> str | None:
        """The name of the preset that is set; None once a knob was turned away from it."""
        return next((name for name, recipe in self.recipes.items() if recipe == self.recipe), None)

    # --- the controls ---

    def make_controls(self) -> None:
        recipe = next(iter(self.recipes.values()))
        base, kind = recipe.summary(), type(recipe)
        self.knobs = {knob.name: Control(knob, base[knob.name], kind) for knob in self.offered}
        for name, control in self.knobs.items():
            control.widget.observe(lambda _, name=name: self.turned(name), "value")
        self.presets = ipywidgets.ToggleButtons(options=list(self.recipes), style={"button_width": "9.6em"})
        self.presets.add_class("labkit-presets")
        self.presets.tooltips = [f"set all knobs to: {name}" for name in self.recipes]
        self.presets.observe(lambda _: self.preset_chosen(), "value")
        self.run_button, self.stop_button = run_button(self.start), stop_button(self.stop)

    def left(self) -> list[ipywidgets.Widget]:
        """From the top: presets, knobs, Run and Stop."""
        buttons = ipywidgets.HBox([self.run_button, self.stop_button])
        return [self.presets, *(control.widget for control in self.knobs.values()), buttons]

    def turned(self, name: str) -> None:
        if not self.moving:
            self.attempt(lambda: self.recipe.but(**{name: self.knobs[name].value}))

    def preset_chosen(self) -> None:
        if not self.moving and self.presets.value is not None:
            self.attempt(lambda: self.preset(self.presets.value))


def heading(title: str, about: str) -> ipywidgets.HTML:
    """Title and one or two sentences above a panel."""
    words = f"<h3 style='margin:0'>{html.escape(title)}</h3>{html.escape(about)}"
    return ipywidgets.HTML(text_html(words))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """A small HTML table; the chosen row is bold."""
    cells = "".join(f"<th scope='col'>{html.escape(word)}</th>" for word in head)
    lines = []
    for number, row in enumerate(rows):
        mark = " class='labkit-chosen'" if number == chosen else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{html.escape(word)}</td>" for word in row) + "</tr>")
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
