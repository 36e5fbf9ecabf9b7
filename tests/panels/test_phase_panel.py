"""The phase panel, without a browser: cells that fill up, a cell that is pressed, pages, stopping, runs on disk."""

import base64
import io
import re

import pytest
from helpers import tiny
from PIL import Image

from labkit.diagnosis.phase_diagram import OUTCOMES, Cell, Phase
from labkit.diagnosis.phase_plots import MARKS
from labkit.errors import RecipeError
from labkit.panels import phase_table
from labkit.panels.phase_panel import PhasePanel, phase_panel
from labkit.panels.worker import Ticket
from labkit.training import run_store
from labkit.training.loop import train

BASE = tiny(steps=8)
AXES = {"lr": (0.1, 1e4), "depth": (2, 3)}


@pytest.fixture
def panel(tmp_path):
    run_store.in_memory.forget()
    made = phase_panel(BASE, folder=tmp_path, **AXES)
    yield made
    made.close()


def height(kept: dict) -> int:
    """Of the picture that a notebook stores."""
    return Image.open(io.BytesIO(base64.b64decode(kept["image/png"]))).height


def text(widget) -> str:
    return re.sub("<[^>]*>", "", widget.value)


def painted(panel: PhasePanel) -> list:
    return [
        place for place, made in panel.buttons.items() if made.description[0] in {mark[0] for mark in MARKS.values()}
    ]


def test_it_opens_empty_and_says_so(panel):
    assert painted(panel) == [] and text(panel.status) == "0 of 4 runs."
    assert all("not trained yet" in made.tooltip for made in panel.buttons.values())


def test_charts_without_a_cell_to_show_take_up_no_room(panel):
    shown = panel.view.picture.widget.layout
    assert shown.display == "none" and "Click a cell" in text(panel.view.picture.status)
    panel.respond((0.1, 2))
    assert shown.display is None


def test_exploring_fills_every_cell_with_letter_accuracy_and_colour(panel):
    panel.start()
    assert panel.worker.wait(120)
    assert len(painted(panel)) == panel.progress.value == 4
    cell, made = panel.found[1e4, 2], panel.buttons[1e4, 2]
    letter, fill, ink = MARKS[cell.outcome]
    assert cell.outcome == "diverged" and made.description == f"{letter} {cell.accuracy:.0%}"
    assert (made.style.button_color, made.style.text_color) == (fill, ink)
    assert made.tooltip == f"learning rate 10000, depth 2: {OUTCOMES['diverged']}"
    assert "4 of 4 runs: " in text(panel.status) and "2 diverged" in text(panel.status)


def test_a_cell_that_is_pressed_shows_its_run(panel):
    panel.explore()
    panel.buttons[0.1, 3].click()
    assert panel.view.worker.wait(60)
    assert "learning rate 0.1, depth 3: " in text(panel.view.picture.status)
    assert panel.view.picture.png().startswith(b"\x89PNG")
    assert panel.buttons[0.1, 3].layout.border_top and panel.chosen == (0.1, 3)
    panel.respond((0.1, 2))
    assert not panel.buttons[0.1, 3].layout.border_top


def test_a_cell_that_is_not_there_yet_is_trained_when_it_is_pressed(panel):
    cell = panel.respond((0.1, 3))
    assert cell.run.recipe["depth"] == 3 and painted(panel) == [(0.1, 3)]
    assert "1 of 4 runs" in text(panel.status)
    with pytest.raises(RecipeError, match="no cell"):
        panel.respond((7, 7))


def test_what_was_explored_is_there_when_the_panel_opens_again(panel, tmp_path):
    panel.explore()
    again = phase_panel(BASE, folder=tmp_path, **AXES)
    assert len(painted(again)) == 4 and "4 of 4" in text(again.status)
    again.close()


def test_stopping_keeps_what_is_finished_and_exploring_goes_on_from_there(panel):
    ticket = Ticket()
    paint = panel.paint
    panel.paint = lambda place: (paint(place), ticket.cancel())
    panel.explore(ticket)
    assert len(painted(panel)) == 1 and text(panel.status).startswith("Stopped: 1 of 4")
    del panel.paint
    panel.explore()
    assert len(painted(panel)) == 4


def test_a_third_axis_has_pages(tmp_path):
    panel = phase_panel(BASE, folder=tmp_path, lr=(0.1,), depth=(2,), activation=("relu", "tanh"))
    first = panel.place_of_grid.children
    panel.page.value = "tanh"
    assert panel.place_of_grid.children != first and len(panel.buttons) == 2
    assert panel.respond((0.1, 2, "tanh")).recipe.activation == "tanh"
    panel.close()


def test_an_exploration_that_breaks_off_is_said_in_the_panel(panel, monkeypatch):
    monkeypatch.setattr(panel.found, "explore", lambda **_: (_ for _ in ()).throw(OSError("disk")))
    panel.start()
    panel.worker.wait(60)
    assert "failed. OSError: disk" in text(panel.status) and panel.progress.bar_style == "danger"


def test_cells_can_be_found_and_heard(panel):
    assert all("labkit-cell" in made._dom_classes and made.tooltip for made in panel.buttons.values())
    assert "labkit-phase" in panel._dom_classes and "role='status'" in panel.status.value


def test_the_standard_grid_is_full_at_once_and_says_where_from(tmp_path):
    made = phase_panel(folder=tmp_path)
    assert len(painted(made)) == 40 and not made.found.cells
    assert text(made.status) == "0 of 40 runs trained here; the other cells are shipped with labkit."
    made.close()


def test_what_was_trained_here_is_counted_apart_from_what_was_shipped(panel):
    panel.shipped = dict.fromkeys(panel.buttons, ("learned", 0.9))
    panel.respond((0.1, 3))
    shown = text(panel.status)
    assert re.fullmatch(r"1 of 4 runs trained here: 1 [\w ]+; the other cells are shipped with labkit\.", shown), shown


@pytest.mark.parametrize("place", [(0.1, 3), (3.0, 12)])  # one that learned, and one that diverged
def test_the_shipped_table_says_what_training_says(place):
    found = Phase()
    outcome, accuracy = phase_table.shipped(found).get(place, (f"run {phase_table.COMMAND}", None))
    again = Cell(found.recipes[place], train(found.recipes[place], progress=False, errors="record"))
    assert again.outcome == outcome and abs(again.accuracy - accuracy) < 0.1  # other machines round otherwise


def test_a_notebook_stores_the_grid_and_below_it_the_chosen_run(panel):
    empty = panel.stored()
    assert "Outcomes of 0 runs over lr and depth: none yet." in empty["text/plain"]
    panel.explore()
    panel.respond((0.1, 3))
    kept = panel.stored()
    assert "Outcomes of 4 runs over lr and depth: " in kept["text/plain"] and "2 diverged" in kept["text/plain"]
    assert height(kept) > height(empty) + 100
