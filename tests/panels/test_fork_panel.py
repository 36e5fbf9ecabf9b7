"""The fork panel, without a browser: scrubbing, intervening, taking back, and what is said of it."""

import re

import numpy as np
import pytest
from helpers import tiny, trained

from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.panels.fork_panel import ForkPanel, fork_panel
from labkit.training import run_store
from labkit.training.fork import fork
from labkit.training.parts import plain_step

RECIPE = tiny(steps=12, samples=500)


@pytest.fixture
def panel():
    run_store.in_memory.forget()
    made = fork_panel(RECIPE)
    made.view.worker.wait(60)
    yield made
    made.close()


def status(panel: ForkPanel) -> str:
    return re.sub("<[^>]*>", "", panel.view.picture.status.value)


def test_it_opens_with_the_original_and_no_counterfactual(panel):
    assert "Original: 12 steps" in status(panel) and "At step 0: loss" in status(panel)
    assert panel.view.picture.png().startswith(b"\x89PNG") and panel.changes == {}
    assert [line.get_xdata()[0] for line in marks(panel)] == [0, 0, 0, 0]


def marks(panel: ForkPanel) -> list:
    """The line at the step of the fork, in every pane."""
    axes = panel.view.picture.finished.axes
    return [line for ax in axes for line in ax.lines if line.get_color() == "black" and len(line.get_xdata()) == 2]


def test_scrubbing_moves_the_mark_and_reads_the_instruments_there_without_training(panel):
    answer = panel.respond(at=7)
    assert answer.run is None and [line.get_xdata()[0] for line in marks(panel)] == [7] * 4
    loss = f"{trained(RECIPE)['loss'][7]:.3g}"
    assert f"At step 7: loss {loss}" in status(panel) and f"<b>{loss}</b>" in panel.now.value


def test_an_intervention_shows_the_counterfactual_beside_the_original(panel):
    answer = panel.respond(at=5, lr=0.001, skip=1)
    expected = fork(RECIPE, at=5, lr=0.001, skip=1, progress=False)
    assert answer.run.facts["weights_sha256"] == expected.facts["weights_sha256"]
    assert (answer.run["loss"][:5] == answer.original["loss"][:5]).all()
    assert "From step 5 on: lr 0.001, skip 1 batch." in status(panel) and "Forked: 12 steps" in status(panel)
    legend = panel.view.picture.finished.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["original", "forked"]


def test_a_counterfactual_that_was_seen_comes_back_without_training(panel, monkeypatch):
    first = panel.respond(at=5, clip=0.1)
    panel.respond(at=4)
    assert panel.respond(at=5).run is first.run


def test_undo_takes_everything_back(panel):
    panel.respond(at=5, lr=0.001, activation="tanh", skip=3)
    panel.undo()
    panel.view.worker.wait(60)
    assert panel.changes == {} and "Forked" not in status(panel) and panel.at == 5


def test_a_slider_that_is_moved_trains_in_the_thread(panel):
    panel.step.value = 6
    panel.skip.value = 2
    assert panel.view.worker.wait(60)
    assert "From step 6 on: skip 2 batches." in status(panel)


def test_a_run_that_broke_off_can_be_forked_as_far_as_it_went():
    panel = fork_panel(RECIPE.but(lr=1e4, steps=40))
    answer = panel.respond(at=1, lr=0.01)
    assert panel.step.max == len(answer.original) - 1 < 39
    assert len(answer.run) == 40 and np.isfinite(answer.run["loss"]).all()
    panel.close()


def test_a_broken_loop_has_a_box_that_mends_it(panel):
    sick = FAILURES["step_missing"].sick.but(steps=12, samples=500, device="cpu")
    broken = fork_panel(sick)
    answer = broken.respond(at=6, step=plain_step)
    assert (answer.run["update_norm"][6:] > 0).all() and "loop fixed" in status(broken)
    shown = broken.children[1].children[0].children
    assert broken.fix_loop in shown and panel.fix_loop not in panel.children[1].children[0].children
    broken.close()


def test_what_cannot_be_done_is_said_in_the_panel():
    panel = fork_panel(RECIPE.but(model="rnn", activation="tanh"))
    panel.view.worker.wait(60)
    panel.knobs["activation"].widget.value = "gelu"
    panel.view.worker.wait(60)
    assert "an RNN supports 'relu' or 'tanh'" in status(panel).replace("&#x27;", "'")
    with pytest.raises(RecipeError, match="this panel can set"):
        panel.respond(at=1, width=3)
    panel.close()


def test_every_control_has_a_label(panel):
    controls = [panel.step, panel.skip, panel.fix_loop, *(control.widget for control in panel.knobs.values())]
    assert all(control.description for control in controls)
    assert "labkit-fork" in panel._dom_classes and "labkit-step" in panel.step._dom_classes


def test_a_fork_that_trains_is_drawn_over_the_original_and_its_mark(panel, short_run):
    shown = panel.view.picture
    panel.respond(at=5)
    shown.begin({"original": trained(RECIPE)}, 12, redraw=True)
    shown.grow(short_run)
    panes = shown.widget.figure["panes"]
    assert all("live" in pane for pane in panes) and set(shown.sent) == {0, 1, 2, 3}
    marks = [line for pane in panes for line in pane["lines"] if line.get("yin") and line["color"] == "#000000"]
    numbers = np.frombuffer(shown.widget.points, "<f4")
    starts = np.cumsum([0, *shown.widget.figure["lengths"]])
    assert len(marks) == 4 and {numbers[starts[mark["x"]]] for mark in marks} == {5.0}
