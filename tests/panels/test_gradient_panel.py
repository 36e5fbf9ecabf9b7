"""The gradient panel without a browser: four regimes, told apart by their gradients in the first steps."""

import numpy as np
import pytest
from helpers import cut_off, hand_made

from labkit.training.rules import RecipeError
from labkit.course.poster.content import BANDS
from labkit.panels import run_memory as memory
from labkit.panels.gradient_panel import EARLY, KNOBS, REGIMES, GradientPanel, parting, read
from labkit.panels.knob_panel import YOURS

SHORT = {name: recipe.but(steps=EARLY, samples=512, batch_size=64) for name, recipe in REGIMES.items()}


@pytest.fixture(scope="module")
def panel():
    memory.forget()
    made = GradientPanel(SHORT)
    assert made.stage.worker.wait(120)
    assert "Diagnosis: no failure shows." in made.stage.picture.status.value  # opened, it trains the four
    yield made
    made.close()
    memory.forget()


@pytest.fixture(scope="module")
def readings(panel):
    return {name: read(run) for name, run in panel.respond("healthy").runs.items()}


def test_the_losses_of_the_first_steps_look_alike(panel, readings):
    losses = [one.loss for one in readings.values()]
    assert max(losses) < 1.35 * min(losses)
    runs = panel.respond("healthy").runs
    assert parting(runs["vanishing"], runs["dead layer"]) is None


def test_the_gradients_of_the_same_steps_do_not(readings):
    low, high = BANDS["grad_ratio"]
    assert low < readings["healthy"].ratio < high
    assert readings["vanishing"].ratio < low / 100
    assert readings["exploding"].ratio > high
    assert readings["dead layer"].silent == tuple(f"layer{number}" for number in range(1, 6))
    assert [one.words.partition(":")[0] for one in readings.values()] == ["healthy", "vanishing", "exploding", "dead"]


def test_a_regime_is_shown_with_its_number_beside_the_usual_range(panel):
    answer = panel.respond("vanishing")
    words = panel.stage.picture.status.value
    assert "Vanishing: loss 2.3" in words
    assert "The loss tells it from healthy" in panel.stage.verdict.value
    assert "(usual: 0.1 to 20)" in words
    assert f"{float(f'{answer.reading.ratio:.2g}'):g}" in words
    assert panel.stage.verdict.value.count("<tr") == 2 + len(SHORT)
    assert "<tr class='labkit-chosen'><td>vanishing</td>" in panel.stage.verdict.value
    assert panel.presets.value == "vanishing"


def test_choosing_a_regime_changes_the_picture_and_trains_nothing(panel, monkeypatch):
    panel.respond("healthy")
    before = panel.stage.picture.image.value
    monkeypatch.setattr(memory, "train", lambda *_, **__: pytest.fail("trained again"))
    panel.presets.value = "exploding"
    assert panel.stage.worker.wait(60)
    assert panel.stage.picture.image.value != before
    assert "Exploding: " in panel.stage.picture.status.value
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
    assert "This cannot be trained. depth: expected" in panel.stage.picture.status.value


def test_every_control_has_a_label(panel):
    assert set(panel.knobs) == {knob.name for knob in KNOBS}
    assert all(control.widget.description and control.widget.tooltip for control in panel.knobs.values())


def test_losses_part_where_they_differ_by_a_quarter():
    flat, falling = hand_made(loss=np.full(40, 2.3)), hand_made(loss=np.linspace(2.3, 0.2, 40))
    step = parting(falling, flat)
    assert falling.smoothed()[step] < 2.3 / 1.25 < falling.smoothed()[step - 1]
    assert parting(flat, flat) is None
    assert parting(hand_made(loss=np.full(40, np.nan)), flat) == 0


def test_every_word_of_the_picture_is_in_it(panel):
    assert cut_off(panel.stage.picture.finished.figure) == []
