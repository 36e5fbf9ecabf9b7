"""The treatment panel, without a browser: arms while they run, the answer at the end."""

import re

import pytest
from treated_programs import ascending

from labkit.errors import RecipeError
from labkit.panels.treat_panel import Arms, treat_panel
from labkit.panels.worker import Ticket


def text(widget) -> str:
    return re.sub("<[^>]*>", "", widget.value)


@pytest.fixture(scope="module")
def panel():
    made = treat_panel(ascending)
    assert made.view.worker.wait(600)
    yield made
    made.close()


def test_the_answer_is_shown_with_the_arms(panel):
    assert panel.result.cured and "Cured" in text(panel.view.picture.status)
    shown = panel.view.picture.finished.thing
    assert isinstance(shown, Arms) and shown.measure == "accuracy"
    labels = panel.view.picture.finished.axes[0].get_legend_handles_labels()[1]
    assert {"untreated", "placebo", "the sign of the loss changed"} <= set(labels)
    assert "(-loss).backward()" in text(panel.view.verdict)
    assert panel.view.picture.png().startswith(b"\x89PNG")


def test_stop_before_the_first_run_has_ended_leaves_the_panel_as_it_was(panel):
    ticket, before = Ticket(), panel.result
    ticket.cancel()
    assert panel.answer(ticket) is None and panel.result is before


def test_what_is_no_program_is_refused():
    with pytest.raises(RecipeError, match="expected a function of `watch`"):
        treat_panel(3)
