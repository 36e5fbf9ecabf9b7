"""The gradient panel without a browser: four regimes, told apart by their gradients in the first steps."""

import numpy as np
import pytest
from helpers import cut_off, hand_made

from labkit.errors import RecipeError
from labkit.panels.gradient_panel import EARLY, KNOBS, REGIMES, GradientPanel, read, separation_step
from labkit.panels.live_view import YOURS
from labkit.recording.traces import TRACES
from labkit.training import run_store

SHORT = {name: recipe.but(steps=EARLY, samples=512, batch_size=64) for name, recipe in REGIMES.items()}


@pytest.fixture(scope="module")
def panel():
    run_store.in_memory.forget()
    made = GradientPanel(SHORT)
    assert made.view.worker.wait(120)
    # Opened, it trains the four: so few steps that the healthy one is merely not finished.
    assert "Diagnosis: Training not finished." in made.view.picture.status.value
    yield made
    made.close()
    run_store.in_memory.forget()


@pytest.fixture(scope="module")
def readings(panel):
    return {name: read(run) for name, run in panel.respond("healthy").runs.items()}


def test_the_losses_of_the_first_steps_look_alike(panel, readings):
    losses = [one.loss for one in readings.values()]
    assert max(losses) < 1.35 * min(losses)
    runs = panel.respond("healthy").runs
    assert separation_step(runs["vanishing"], runs["dead layer"]) is None


def test_the_gradients_of_the_same_steps_do_not(readings):
    low, high = TRACES["grad_ratio"].low, TRACES["grad_ratio"].high
    assert low < readings["healthy"].ratio < high
    assert readings["vanishing"].ratio < low / 100
    assert readings["exploding"].ratio > high
    assert readings["dead layer"].dead == tuple(f"layer{number}" for number in range(1, 6))
    assert [one.words.partition(":")[0] for one in readings.values()] == ["healthy", "vanishing", "exploding", "dead"]


def test_a_regime_is_shown_with_its_number_beside_the_usual_range(panel):
    answer = panel.respond("vanishing")
    words = panel.view.picture.status.value
    assert "Vanishing: loss 2.3" in words
    assert "The loss curve differs from healthy" in panel.view.verdict.value
    assert "(usual: 0.1 to 20)" in words
    assert f"{float(f'{answer.reading.ratio:.2g}'):g}" in words
    assert panel.view.verdict.value.count("<tr") == 2 + len(SHORT)
    assert "<tr class='labkit-chosen'><td>vanishing</td>" in panel.view.verdict.value
    assert panel.presets.value == "vanishing"


def test_choosing_a_regime_changes_the_picture_and_trains_nothing(panel, monkeypatch):
    panel.respond("healthy")
    before = panel.view.picture.png()
    monkeypatch.setattr(run_store, "train", lambda *_, **__: pytest.fail("trained again"))
    panel.presets.value = "exploding"
    assert panel.view.worker.wait(60)
    assert panel.view.picture.png() != before
    assert "Exploding: " in panel.view.picture.status.value
    assert panel.knobs["activation"].value == "tanh"


def test_a_turned_knob_is_a_run_of_its_own_beside_the_four(panel):
    answer = panel.respond("vanishing", normalisation="batch")
    assert list(answer.runs) == [*SHORT, YOURS]
    assert answer.chosen == YOURS
    assert panel.presets.value is None
    assert answer.reading.ratio > read(answer.runs["vanishing"]).ratio


def test_what_is_refused_says_why_and_the_panel_stays(panel):
    panel.respond("healthy")
    with pytest.raises(RecipeError, match="depth: expected a whole number at least 1"):
        panel.respond(depth=0)
    with pytest.raises(RecipeError, match="expected one of healthy, vanishing"):
        panel.respond("asleep")
    assert panel.chosen == "healthy"
    panel.attempt(lambda: panel.recipe.but(depth=0))
    assert "This cannot be trained. depth: expected" in panel.view.picture.status.value


def test_every_control_has_a_label(panel):
    assert set(panel.knobs) == {knob.name for knob in KNOBS}
    assert all(control.widget.description and control.widget.tooltip for control in panel.knobs.values())


def test_losses_part_where_they_differ_by_a_quarter():
    flat, falling = hand_made(loss=np.full(40, 2.3)), hand_made(loss=np.linspace(2.3, 0.2, 40))
    step = separation_step(falling, flat)
    assert falling.smoothed()[step] < 2.3 / 1.25 < falling.smoothed()[step - 1]
    assert separation_step(flat, flat) is None
    assert separation_step(hand_made(loss=np.full(40, np.nan)), flat) == 0


def test_every_word_of_the_picture_is_in_it(panel):
    assert cut_off(panel.view.picture.finished.figure) == []
