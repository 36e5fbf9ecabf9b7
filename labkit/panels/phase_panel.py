"""The phase panel: a grid of real runs that fills up in the background; a cell shows its curves when it is pressed."""

import html

import ipywidgets

from labkit.drawing import plots
from labkit.training.run_store import Archive
from labkit.training.rules import RecipeError
from labkit.diagnosis.phase_diagram import OUTCOMES, STANDARD, Cell, Phase, Place
from labkit.diagnosis.phase_plots import MARKS, in_short, in_words
from labkit.training.recipe import Recipe
from labkit.panels import run_memory as memory
from labkit.panels.knob_panel import button
from labkit.panels.knob_panel import in_short as run_in_short
from labkit.panels.live_plots import text_html
from labkit.panels.live_view import Stage, close
from labkit.panels.worker import Ticket, Worker

PANES = (plots.losses, plots.validation, plots.gradient_bars, plots.update_ratio)
WIDTH, HEIGHT = "4.7em", "2.5em"  # of a cell: room for "L 100%"


def phase_panel(recipe: Recipe = STANDARD, *, folder=None, **axes) -> "PhasePanel":
    """A panel for a grid, `phase_panel(recipe, lr=(0.01, 0.1, 1), depth=(2, 5, 8))`; a third axis has pages."""
    return PhasePanel(Phase(recipe, axes) if axes else Phase(recipe), Archive(folder))


class PhasePanel(ipywidgets.VBox):
    """The grid on the left, the run of the chosen cell on the right. Without a browser: `respond` and `explore`."""

    def __init__(self, found: Phase, archive: Archive):
        self.found, self.archive = found, archive
        self.stage = Stage(PANES)  # its thread trains the one cell that was pressed
        self.worker = Worker(self.refuse)  # and this one all the others
        self.chosen: Place | None = None
        self.make_controls()
        left = ipywidgets.VBox(self.left(), layout={"flex": "0 0 auto"})
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "1.5em"}
        super().__init__([heading(found), ipywidgets.Box([left, self.stage.widget], layout=row)])
        self.add_class("labkit-panel")
        self.add_class("labkit-phase")
        for place in found.recall(archive):
            self.paint(place)
        self.count()
        self.stage.picture.say("Press a cell to see its curves.")

    # --- what a button does ---

    def respond(self, place: Place) -> Cell | None:
        """Show one cell, trained now where it is missing; it waits until that is done."""
        self.stage.worker.stop()
        return self.answer(place, Ticket())

    def answer(self, place: Place, ticket: Ticket) -> Cell | None:
        if place not in self.found.recipes:
            raise RecipeError(f"there is no cell {place!r}; expected one value each of {', '.join(self.found.axes)}")
        if place not in self.found.cells and not self.train(place, ticket):
            return None
        cell = self.found[place]
        self.mark(place)
        self.stage.show({"run": cell.run}, self.words(place, cell), cell.diagnoses)
        return cell

    def train(self, place: Place, ticket: Ticket) -> bool:
        """Train one cell before its turn; False if it was given up."""
        recipe = self.found.recipes[place]
        run = self.stage.train(recipe, {}, ticket)
        if run is not None:
            self.archive.put(recipe, run)
            self.found.cells[place] = Cell(recipe, run)
            self.paint(place)
            self.count()
        return run is not None

    def pressed(self, place: Place) -> None:
        self.stage.perform(lambda ticket: self.answer(place, ticket))

    def explore(self, ticket: Ticket | None = None) -> None:
        """Train what is missing, cell by cell; it waits until that is done or given up."""
        ticket = ticket or Ticket()
        for place in self.found.explore(archive=self.archive, stop=lambda: ticket.cancelled):
            cell = self.found.cells[place]
            memory.remember(cell.recipe, cell.run)
            self.paint(place)
            self.count("Exploring")
        self.count("Stopped" if ticket.cancelled else "")

    def start(self) -> None:
        self.worker.start(self.explore)

    def stop(self) -> None:
        """Give up the run that is going on, in the grid and beside it; finished cells stay."""
        self.worker.stop()
        self.stage.stop()

    def refuse(self, error: Exception) -> None:
        self.progress.bar_style = "danger"
        self.say(f"The exploration broke off. {type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop, and take the panel out of the notebook."""
        self.worker.stop()
        self.worker.wait()
        self.stage.end()
        for part in (self, self.page, *self.pages.values()):  # of which only one is shown
            close(part)

    # --- what is seen of the grid ---

    def paint(self, place: Place) -> None:
        """Letter, accuracy and colour of a finished cell."""
        cell, made = self.found.cells[place], self.buttons[place]
        letter, fill, ink = MARKS[cell.outcome]
        made.description = letter if cell.accuracy is None else f"{letter} {cell.accuracy:.0%}"
        made.style.button_color, made.style.text_color = fill, ink
        made.tooltip = f"{self.where(place)}: {OUTCOMES[cell.outcome]}"

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
        self.say(f"{doing + ': ' if doing else ''}{done} of {all_of_them} runs{': ' + counts if counts else ''}.")

    def say(self, words: str) -> None:
        self.status.value = text_html(f"<span role='status' aria-live='polite'>{html.escape(words)}</span>")

    def where(self, place: Place) -> str:
        pairs = zip(self.found.axes, place, strict=True)
        return ", ".join(f"{in_words(name)} {in_short(value)}" for name, value in pairs)

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
            options=options, description=in_words(name), style={"button_width": "auto"}
        )
        self.page.add_class("labkit-page")
        self.page.observe(lambda _: self.turn_page(), "value")
        self.progress = ipywidgets.IntProgress(max=len(self.found.recipes), layout={"width": "100%", "height": "1.3em"})
        self.progress.add_class("labkit-explored")
        self.status = ipywidgets.HTML()
        self.status.add_class("labkit-counts")
        self.explore_button = button("Explore", "play", "train every cell that is missing", self.start, "primary")
        self.explore_button.add_class("labkit-explore")
        self.stop_button = button("Stop", "stop", "give up the run that is going on; finished cells stay", self.stop)
        self.stop_button.add_class("labkit-stop")

    def make_cell(self, place: Place) -> ipywidgets.Button:
        layout = {"width": WIDTH, "height": HEIGHT, "margin": "1px", "padding": "0"}
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
        corner = label(f"{in_words(down)} ↑ &nbsp; {in_words(across)} →")
        cells += [label(""), *(label(in_short(column)) for column in columns)]
        template = f"minmax(2.4em, max-content) repeat({len(columns)}, max-content)"
        made = ipywidgets.GridBox(cells, layout={"grid_template_columns": template, "align_items": "center"})
        return ipywidgets.VBox([made, corner])

    def turn_page(self) -> None:
        self.place_of_grid.children = [self.pages[self.page.value]]

    def left(self) -> list:
        self.place_of_grid = ipywidgets.Box([next(iter(self.pages.values()))])
        pages = [self.page] if None not in self.pages else []
        buttons = ipywidgets.HBox([self.explore_button, self.stop_button])
        return [*pages, self.place_of_grid, legend(), buttons, self.progress, self.status]


def label(words: str) -> ipywidgets.HTML:
    return ipywidgets.HTML(f"<div style='text-align:center;line-height:1.6'>{words}</div>")


def legend() -> ipywidgets.HTML:
    """What the letters mean."""
    style = "display:inline-block;width:1.5em;text-align:center;font-weight:bold;margin-right:0.4em"
    rows = "".join(
        f"<div><span style='{style};background:{fill};color:{ink}'>{letter}</span>{html.escape(OUTCOMES[name])}</div>"
        for name, (letter, fill, ink) in MARKS.items()
    )
    return ipywidgets.HTML(text_html(rows))


def heading(found: Phase) -> ipywidgets.HTML:
    across, down, *third = (in_words(name) for name in found.axes)
    title = f"Phase diagram: {across} by {down}" + (f" by {third[0]}" if third else "")
    about = "Every cell is one real run, kept on disk as it is finished. Press one to see its curves."
    return ipywidgets.HTML(text_html(f"<h3 style='margin:0'>{html.escape(title)}</h3>{about}"))
