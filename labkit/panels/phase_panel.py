"""The phase panel: a grid of real runs that are trained in the background; click a cell to see its curves."""

import html
import io
import os
from typing import Any

import ipywidgets

from labkit.diagnosis.phase_diagram import OUTCOMES, STANDARD, Cell, Phase, Place
from labkit.diagnosis.phase_plots import MARKS, axis_label, in_short, phase_diagram
from labkit.drawing import plots
from labkit.errors import RecipeError
from labkit.panels.base_panel import Panel
from labkit.panels.controls import button, stop_button
from labkit.panels.live_plots import DOTS, stacked, status_html, text_html
from labkit.panels.live_view import LiveView
from labkit.panels.live_view import in_short as run_in_short
from labkit.panels.phase_table import shipped
from labkit.panels.worker import Ticket, Worker
from labkit.recording.measure import MEASURES
from labkit.training.recipe import Recipe
from labkit.training.run_store import RunStore, on_disk

PANES = (plots.losses, plots.validation, plots.gradient_bars, plots.update_ratio)
WIDTH, HEIGHT = "4.7em", "2.5em"  # of a cell: room for "L 100%"; on a phone it is narrower, and its type smaller
WIDEST = "42em"  # of the grid: nine columns
ABOUT = "Every cell is the outcome of one real run. Click one to train it here and see its curves."


def phase_panel(
    recipe: Recipe = STANDARD, *, folder: str | os.PathLike | None = None, **axes: tuple[Any, ...]
) -> "PhasePanel":
    """A panel for a grid, `phase_panel(recipe, lr=(0.01, 0.1, 1), depth=(2, 5, 8))`; a third axis has pages."""
    return PhasePanel(Phase(recipe, axes) if axes else Phase(recipe), on_disk(folder))


class PhasePanel(Panel):
    """The grid on the left, the run of the chosen cell on the right. Without a browser: `respond` and `explore`."""

    def __init__(self, found: Phase, store: RunStore):
        self.found, self.store, self.shipped = found, store, shipped(found)
        self.view = LiveView(PANES, store=store)  # its thread trains the one cell that was pressed
        self.worker = Worker(self.refuse)  # and this one all the others
        self.chosen: Place | None = None
        super().__init__(title_of(found), ABOUT, self.view, width=f"min(100%, {WIDEST})", gap="1.5em")
        self.closed_with = (self.page, *self.pages.values())  # of the pages only one is shown
        self.add_class("labkit-phase")
        for place in {*self.shipped, *found.recall(store)}:
            self.paint(place)
        self.count()
        self.view.picture.say("Click a cell to see its curves.")
        self.view.picture.hide()  # no cell is chosen yet

    def stored(self) -> dict[str, str]:
        """The grid, and below it the run of the chosen cell."""
        ax = phase_diagram(self.found, known=self.shipped)
        grid = io.BytesIO()
        ax.figure.savefig(grid, format="png", dpi=DOTS)
        run = [self.plots.png()] if self.plots.finished.thing is not None else []
        outcomes = [outcome for outcome, _ in self.shipped.values()] or [
            cell.outcome for cell in self.found.cells.values()
        ]
        counts = ", ".join(f"{outcomes.count(name)} {name}" for name in OUTCOMES if name in outcomes)
        words = f"Outcomes of {len(outcomes)} runs over {' and '.join(self.found.axes)}: {counts or 'none yet'}."
        return {"text/plain": f"{words} {self.plots.words}"} | stacked([grid.getvalue(), *run])

    # --- what a button does ---

    def respond(self, place: Place) -> Cell | None:
        """Show one cell, and return it; it is trained now if it is missing."""
        self.view.worker.stop()
        return self.show_cell(place, Ticket())

    def show_cell(self, place: Place, ticket: Ticket) -> Cell | None:
        if place not in self.found.recipes:
            raise RecipeError(f"there is no cell {place!r}; expected one value each of {', '.join(self.found.axes)}")
        if place not in self.found.cells and not self.train(place, ticket):
            return None
        cell = self.found[place]
        self.mark(place)
        self.view.show({"run": cell.run}, self.words(place, cell), cell.diagnoses)
        return cell

    def train(self, place: Place, ticket: Ticket) -> bool:
        """Train one cell now; False if it was cancelled."""
        recipe = self.found.recipes[place]
        run = self.view.train(recipe, {}, ticket)
        if run is not None:
            self.found.cells[place] = Cell(recipe, run)
            self.paint(place)
            self.count()
        return run is not None

    def pressed(self, place: Place) -> None:
        self.view.perform(lambda ticket: self.show_cell(place, ticket))

    def explore(self, ticket: Ticket | None = None) -> None:
        """Train the missing cells one by one; it returns when all are trained, or when it is cancelled."""
        ticket = ticket or Ticket()
        for place in self.found.explore(store=self.store, stop=lambda: ticket.cancelled):
            self.paint(place)
            self.count("Exploring")
        self.count("Stopped" if ticket.cancelled else "")

    def start(self) -> None:
        """Explore in the background."""
        self.worker.start(self.explore)

    def stop(self) -> None:
        """Cancel the runs that are training, in the grid and beside it; finished cells stay."""
        self.worker.stop()
        super().stop()

    def refuse(self, error: Exception) -> None:
        self.progress.bar_style = "danger"
        self.say(f"Exploration failed. {type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop, and remove the panel from the notebook."""
        self.worker.stop()
        self.worker.wait()
        super().close()

    # --- what the grid shows ---

    def paint(self, place: Place) -> None:
        """Letter, score and colour of a finished cell: trained here, or else from the shipped table."""
        cell, made = self.found.cells.get(place), self.buttons[place]
        outcome, score = (cell.outcome, cell.score) if cell else self.shipped[place]
        letter, fill, ink = MARKS[outcome]
        made.description = letter if score is None else f"{letter} {MEASURES[self.found.recipe.measure].brief(score)}"
        made.style.button_color, made.style.text_color = fill, ink
        origin = "" if cell else " (trained elsewhere, shipped with labkit: click to train it here)"
        made.tooltip = f"{self.where(place)}: {OUTCOMES[outcome]}{origin}"

    def mark(self, place: Place) -> None:
        """A frame around the cell whose curves are shown."""
        for each in filter(None, (self.chosen, place)):
            self.buttons[each].layout.border = "3px solid #0072B2" if each == place else None
        self.chosen = place

    def count(self, doing: str = "") -> None:
        done, all_of_them = len(self.found.cells), len(self.found.recipes)
        self.progress.value = done
        self.progress.bar_style = "success" if done == all_of_them else ""
        counts = ", ".join(f"{count} {name}" for name, count in self.found.counts.items())
        partly = bool(self.shipped) and done < all_of_them
        here = f"{done} of {all_of_them} runs{' trained here' if partly else ''}{': ' + counts if counts else ''}"
        rest = "; the other cells are shipped with labkit" if partly else ""
        self.say(f"{doing + ': ' if doing else ''}{here}{rest}.")

    def say(self, words: str) -> None:
        self.status.value = status_html(words)

    def where(self, place: Place) -> str:
        pairs = zip(self.found.axes, place, strict=True)
        return ", ".join(f"{axis_label(name)} {in_short(value)}" for name, value in pairs)

    def words(self, place: Place, cell: Cell) -> str:
        return f"{self.where(place)}: {OUTCOMES[cell.outcome]}. {run_in_short(cell.run)}."

    # --- the controls ---

    def make_controls(self) -> None:
        self.buttons = {place: self.make_cell(place) for place in self.found.recipes}
        _, _, *third = self.found.axes.items()
        self.pages = {value: self.grid((value,)) for value in third[0][1]} if third else {None: self.grid(())}
        name, values = third[0] if third else ("", ())
        options = [(in_short(value), value) for value in values]
        self.page = ipywidgets.ToggleButtons(
            options=options, description=axis_label(name), style={"button_width": "auto"}
        )
        self.page.add_class("labkit-page")
        self.page.observe(lambda _: self.turn_page(), "value")
        self.progress = ipywidgets.IntProgress(max=len(self.found.recipes), layout={"width": "100%", "height": "1.3em"})
        self.progress.add_class("labkit-explored")
        self.status = ipywidgets.HTML()
        self.status.add_class("labkit-counts")
        self.explore_button = button("Explore", "play", "train every cell that is missing", self.start, "primary")
        self.explore_button.add_class("labkit-explore")
        self.stop_button = stop_button(self.stop, "stop training; finished cells stay")

    def make_cell(self, place: Place) -> ipywidgets.Button:
        layout = {"width": "auto", "min_width": "0", "height": HEIGHT, "margin": "1px", "padding": "0"}
        made = ipywidgets.Button(description="·", tooltip=f"{self.where(place)}: not trained yet", layout=layout)
        made.add_class("labkit-cell")
        made.on_click(lambda _: self.pressed(place))
        return made

    def grid(self, page: tuple) -> ipywidgets.GridBox:
        """One page: the second axis upwards, the first to the right, as in a diagram."""
        (across, columns), (down, rows), *_ = self.found.axes.items()
        cells = []
        for row in reversed(rows):
            cells += [label(in_short(row)), *(self.buttons[(column, row, *page)] for column in columns)]
        corner = label(f"{axis_label(down)} ↑ &nbsp; {axis_label(across)} →")
        cells += [label(""), *(label(in_short(column)) for column in columns)]
        template = f"minmax(2.4em, max-content) repeat({len(columns)}, minmax(0, {WIDTH}))"
        made = ipywidgets.GridBox(cells, layout={"grid_template_columns": template, "align_items": "center"})
        return ipywidgets.VBox([made, corner], layout={"width": "100%"})

    def turn_page(self) -> None:
        self.place_of_grid.children = [self.pages[self.page.value]]

    def left(self) -> list:
        self.place_of_grid = ipywidgets.Box([next(iter(self.pages.values()))], layout={"width": "100%"})
        pages = [self.page] if None not in self.pages else []
        buttons = ipywidgets.HBox([self.explore_button, self.stop_button])
        return [*pages, self.place_of_grid, legend(), buttons, self.progress, self.status]


def label(words: str) -> ipywidgets.HTML:
    made = ipywidgets.HTML(f"<div style='text-align:center;line-height:1.6'>{words}</div>")
    made.add_class("labkit-tick")
    return made


def legend() -> ipywidgets.HTML:
    """What the letters mean."""
    style = "flex:none;width:1.5em;text-align:center;font-weight:bold;margin-right:0.4em"
    rows = "".join(
        f"<div style='display:flex'><span style='{style};background:{fill};color:{ink}'>{letter}</span>"
        f"{html.escape(OUTCOMES[name])}</div>"
        for name, (letter, fill, ink) in MARKS.items()
    )
    return ipywidgets.HTML(text_html(rows))


def title_of(found: Phase) -> str:
    return "Phase diagram: " + " by ".join(axis_label(name) for name in found.axes)
