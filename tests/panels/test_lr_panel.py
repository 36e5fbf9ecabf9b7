"""The learning-rate panel, without a browser: the curve, the rate on it, and the run it gives."""

import re

import numpy as np
import pytest
from helpers import tiny, trained

from labkit.errors import RecipeError
from labkit.panels.lr_panel import LearningRateAnswer, LearningRatePanel, lr_panel, range_test
from labkit.tools.lr_finder import RangeTest
from labkit.training import run_store

RECIPE = tiny(steps=12, samples=500)


@pytest.fixture(scope="module")
def panel():
    run_store.in_memory.forget()
    made = lr_panel(RECIPE)
    made.view.worker.wait(60)
    yield made
    made.close()


def status(panel: LearningRatePanel) -> str:
    return re.sub("<[^>]*>", "", panel.view.picture.status.value)


def mark(panel: LearningRatePanel) -> float:
    (ax,) = panel.curve.finished.axes
    return next(line.get_xdata()[0] for line in ax.lines if line.get_label().startswith("yours: "))


def test_the_rate_is_marked_on_the_curve_and_trained(panel):
    answer = panel.respond(lr=0.02)
    assert answer.run.facts["weights_sha256"] == trained(RECIPE.but(lr=0.02)).facts["weights_sha256"]
    assert mark(panel) == 0.02 and panel.lr.value == 0.02
    assert "Learning rate 0.02" in status(panel) and "12 steps" in status(panel)
    assert panel.curve.png().startswith(b"\x89PNG") and panel.view.picture.png().startswith(b"\x89PNG")


def test_the_slider_moved_by_hand_gives_that_run(panel):
    panel.lr.widget.value = 1.0
    assert panel.view.worker.wait(60)
    assert mark(panel) == 1.0 and "Learning rate 1" in status(panel)


def test_the_range_test_is_done_once_and_is_the_same_for_the_same_seed(panel):
    before = panel.found
    panel.respond(lr=0.05)
    assert panel.found is before
    again = range_test(RECIPE)
    assert np.array_equal(again.losses, before.losses) and again.suggestion == before.suggestion


def test_the_buttons_go_where_the_range_test_points(panel):
    for name, rate in (("suggested", panel.found.suggestion), ("diverging", panel.found.diverged_at)):
        if rate:
            panel.rates[name].click()
            panel.view.worker.wait(60)
            assert mark(panel) == panel.on_slider(rate) == pytest.approx(rate, rel=0.07)
    panel.respond(lr=0.05)
    panel.rates["higher"].click()
    panel.view.worker.wait(60)
    assert mark(panel) == pytest.approx(0.5)


def test_the_run_of_the_suggested_rate_is_shown_beside_it(panel):
    panel.respond(lr=0.05)
    lr = panel.on_slider(panel.found.suggestion)
    legend = panel.view.picture.finished.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"suggested: {lr:g}", "your run"]
    assert run_store.in_memory.get(RECIPE.but(lr=lr)) is not None
    assert f"suggests {panel.found.suggestion:.2g}" in panel.curve.status.value


CURVE = np.geomspace(1e-5, 10, 5)


@pytest.mark.parametrize(
    ("lr", "suggestion", "diverged_at", "words"),
    [
        (0.1, 0.09, 3.0, "near the suggestion of 0.09"),
        (0.001, 0.1, 3.0, "1/1e+02 of the suggestion"),
        (1.0, 0.1, 3.0, "10 times the suggestion of 0.1"),
        (5.0, 0.1, 3.0, "beyond 3, where the range test diverges"),
        (0.1, None, None, "suggests no learning rate"),
    ],
)
def test_it_is_said_where_on_the_curve_the_rate_lies(short_run, lr, suggestion, diverged_at, words):
    found = RangeTest(CURVE, CURVE, CURVE, suggestion, diverged_at)
    assert words in LearningRateAnswer(lr, found, short_run, []).words


def test_a_rate_that_no_recipe_takes_is_refused_and_nothing_moves(panel):
    before = panel.lr.value
    with pytest.raises(RecipeError, match="lr: expected a number above 0"):
        panel.respond(lr=-1.0)
    assert panel.lr.value == before


def test_controls_have_labels_and_classes(panel):
    assert panel.lr.widget.description == "lr" and "labkit-lr" in panel._dom_classes
    assert all(made.description and made.tooltip for made in panel.rates.values())
    assert "labkit-lr-suggested" in panel.rates["suggested"]._dom_classes
