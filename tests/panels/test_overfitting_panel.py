"""The overfitting panel without a browser: fewer images open the gap, and a remedy is measured beside doing nothing."""

import gc
import threading

import ipywidgets
import numpy as np
import pytest
from helpers import cut_off, hand_made, tiny

from labkit.panels.overfitting_panel import UNTREATED, Answer, OverfittingPanel, reading, turning_point
from labkit.training import run_store

PLENTY = tiny(samples=2000, width=32, steps=60, momentum=0.0, evaluate_every=10)
SHORT = {"plenty": PLENTY, "few": PLENTY.but(samples=20), "few, small": PLENTY.but(samples=20, width=8)}


@pytest.fixture(scope="module")
def panel():
    run_store.in_memory.forget()
    made = OverfittingPanel(SHORT)
    assert made.view.worker.wait(120)
    assert "The gap is" in made.view.picture.status.value  # opened, it trains where nothing was seen before
    yield made
    made.close()
    run_store.in_memory.forget()


def test_fewer_images_open_the_gap(panel):
    assert "The gap is closed" in panel.respond("plenty", early=False).judgement
    few = panel.respond("few")
    assert few.now.gap > 0.5
    assert few.now.train_accuracy > few.now.val_accuracy
    assert "The gap is open" in panel.view.picture.status.value
    assert f"{few.now.gap:.2f} nats (usual: up to 0.5)" in panel.view.verdict.value


def test_a_remedy_is_measured_beside_doing_nothing(panel):
    few = panel.respond("few", early=False)
    assert few.treatment == ""
    treated = panel.respond("few", weight_decay=0.1)
    assert list(treated.runs) == ["healthy", "your run", UNTREATED]
    assert treated.untreated is few.run
    assert f"from {few.now.gap:.2f} to {treated.now.gap:.2f}" in treated.treatment
    assert treated.treatment in panel.view.verdict.value
    assert panel.presets.value is None


def test_early_stopping_reads_the_run_where_the_validation_loss_was_lowest(panel):
    whole, early = panel.respond("few", early=False), panel.respond("few", early=True)
    assert early.run is whole.run
    assert early.now.val_loss == np.min(early.run["val_loss"]) < whole.now.val_loss
    assert early.now.step < whole.now.step
    assert "<tr class='labkit-chosen'><td>lowest validation loss" in panel.view.verdict.value
    panel.respond(early=False)
    assert "<tr class='labkit-chosen'><td>at the end" in panel.view.verdict.value


def test_stopping_early_is_what_training_so_long_would_have_given(panel):
    early = panel.respond("few", early=True)
    short = run_store.in_memory.run_of(panel.recipe.but(steps=early.now.step))
    assert short["val_loss"][-1] == pytest.approx(early.now.val_loss, rel=1e-5)


def test_the_tick_box_shows_the_same_run_anew(panel, monkeypatch):
    panel.respond("few", early=False)
    monkeypatch.setattr(run_store, "train", lambda *_, **__: pytest.fail("trained again"))
    panel.early.value = True
    assert panel.view.worker.wait(60)
    assert "<tr class='labkit-chosen'><td>lowest validation loss" in panel.view.verdict.value
    panel.early.value = False
    assert panel.view.worker.wait(60)


def test_turning_the_samples_goes_to_the_preset_that_has_them(panel):
    panel.respond("plenty")
    panel.knobs["samples"].widget.value = 50
    assert panel.view.worker.wait(60)
    assert panel.recipe.samples == 50
    assert panel.presets.value is None
    panel.respond(samples=20)
    assert panel.presets.value == "few"
    assert {recipe.samples for recipe in panel.tried} >= {20, 50, 2000}


def test_losses_that_are_not_finite_have_no_gap():
    broken = hand_made(val_loss=[2.3, 1.0, np.nan, np.nan, np.nan], facts={"samples": 100})
    assert turning_point(broken) == 1
    assert reading(broken, 1).val_loss == 1.0
    assert "cannot be read" in Answer(broken, broken, None, False, []).judgement


def test_ten_panels_leave_no_threads_and_no_widgets():
    registry = ipywidgets.widgets.widget._instances
    OverfittingPanel(SHORT).close()
    gc.collect()
    threads, widgets = threading.active_count(), len(registry)
    for _ in range(10):
        OverfittingPanel(SHORT).close()
    gc.collect()
    assert threading.active_count() == threads
    assert len(registry) <= widgets


def test_every_word_of_the_picture_is_in_it(panel):
    assert cut_off(panel.view.picture.finished.figure) == []
