"""The knob panel without a browser: turning knobs trains, shows, names and remembers."""

import base64
import gc
import io
import threading

import ipywidgets
import numpy as np
import pytest
from helpers import tiny
from PIL import Image

from labkit.diagnosis.diagnose import diagnose
from labkit.failures.catalogue import FAILURES
from labkit.panels import live_view
from labkit.panels.knob_panel import KnobPanel, knobs
from labkit.panels.live_plots import Picture, panes_for
from labkit.training import run_store, state

TINY = "learning_rate_too_high/sick: samples=256, steps=30, width=16, evaluate_every=10"


@pytest.fixture(autouse=True)
def empty_memory():
    run_store.in_memory.forget()
    yield
    run_store.in_memory.forget()


@pytest.fixture(params=["interactive", "picture"])
def panel(request, monkeypatch):
    """The same panel with charts and with images."""
    monkeypatch.setenv("LABKIT_CHARTS", request.param)
    small_twins(monkeypatch)
    made = knobs(TINY)
    assert made.view.worker.wait(60)
    yield made
    made.close()


def small_twins(monkeypatch) -> None:
    """Healthy twins as short as the tiny runs."""
    from labkit.panels.panel_state import PanelState

    monkeypatch.setattr(PanelState, "twin", property(lambda self: tiny(seed=self.recipe.seed, evaluate_every=3)))


def status(panel) -> str:
    return panel.view.picture.status.value


def live(panel):
    """What is shown of a run that trains: an image, or the points of its lines."""
    shown = panel.view.picture
    return shown.widget.value if isinstance(shown, Picture) else sum(points.size for points in shown.sent.values())


def pixels(panel) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(panel.view.picture.png())))


def test_a_notebook_keeps_the_widget_and_an_image_of_a_finished_run(panel):
    kept = panel._repr_mimebundle_()
    assert kept["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id
    assert base64.b64decode(kept["image/png"]).startswith(b"\x89PNG")
    assert "Your run: 30 steps" in kept["text/plain"]


def test_opened_it_trains_and_shows_picture_status_and_verdict(panel):
    assert "Learning rate too high" in status(panel)
    assert "role='status'" in status(panel)
    assert "Learning rate too high" in panel.view.verdict.value
    assert "Usual:" in panel.view.verdict.value
    assert pixels(panel).std() > 10
    assert panel.view.progress.bar_style == "success"


def test_respond_turns_knobs_and_gives_the_run_and_the_diagnosis(panel):
    before = panel.view.picture.png()
    answer = panel.respond(lr=0.05)
    assert len(answer.run) == 30
    assert answer.diagnoses == diagnose(answer.run)
    assert panel.view.picture.png() != before
    assert panel.knobs["lr"].value == 0.05
    assert f"{answer.run.accuracy:.1%}" in status(panel)
    assert panel.state == TINY + ", lr=0.05"


def test_a_turned_slider_trains_in_the_thread(panel):
    panel.knobs["lr"].widget.value = 0.01
    assert panel.view.worker.wait(60)
    assert panel.setting.changes["lr"] == 0.01
    assert "30 steps" in status(panel)


def test_ten_values_leave_one_run(panel, monkeypatch):
    asked, really = [], run_store.train
    monkeypatch.setattr(run_store, "train", lambda recipe, **more: asked.append(recipe.lr) or really(recipe, **more))
    values = [float(f"{value:.2g}") for value in np.geomspace(0.001, 0.5, 10)]
    with state._random_numbers:  # nobody can train as long as this thread holds the random numbers
        for value in values:
            panel.knobs["lr"].widget.value = value
    assert panel.view.worker.wait(60)
    assert asked[-1] == values[-1]
    assert len(asked) <= 2  # the first may have begun before the others came
    assert panel.setting.recipe.lr == values[-1]


def test_a_setting_that_was_seen_comes_back_without_training(panel, monkeypatch):
    first = panel.respond(lr=0.05)
    panel.respond(lr=0.06)
    monkeypatch.setattr(run_store, "train", lambda *_, **__: pytest.fail("trained again"))
    assert panel.respond(lr=0.05).run is first.run


def test_stop_ends_the_run_and_says_so_and_it_is_not_remembered(panel, monkeypatch):
    monkeypatch.setattr(live_view, "FIRST_FRAME", 0.0)
    begun = threading.Event()
    monkeypatch.setattr(live_view.Frames, "draw", lambda self, recorder: begun.set())
    panel.turn(panel.setting.but(steps=100_000))
    panel.start()
    assert begun.wait(60) and panel.view.verdict.value
    panel.stop_button.click()
    assert panel.view.worker.wait(60)
    assert "Stopped" in status(panel)
    assert panel.view.verdict.value == ""  # the one that was there is that of the run before
    assert run_store.in_memory.get(panel.setting.recipe) is None


def test_stop_leaves_the_verdict_that_the_run_had_so_far(panel, monkeypatch):
    monkeypatch.setattr(live_view, "FIRST_FRAME", 0.0)
    monkeypatch.setattr(live_view, "FIRST_VERDICT", 1)
    monkeypatch.setattr(type(panel.view.picture), "grow", lambda self, run: None)
    begun = threading.Event()
    real = live_view.Frames.draw
    monkeypatch.setattr(live_view.Frames, "draw", lambda self, recorder: (real(self, recorder), begun.set()))
    panel.turn(panel.setting.but(steps=100_000, lr=0.01))
    panel.start()
    assert begun.wait(60)
    panel.stop_button.click()
    assert panel.view.worker.wait(60)
    assert "Stopped" in status(panel) and "So far" in panel.view.verdict.value


def test_a_frame_that_is_being_drawn_when_stop_is_pressed_does_not_have_the_last_word(panel, monkeypatch):
    monkeypatch.setattr(live_view, "FIRST_FRAME", 0.0)
    monkeypatch.setattr(type(panel.view.picture), "grow", lambda self, run: panel.stop_button.click())
    panel.turn(panel.setting.but(steps=100_000))
    panel.start()
    assert panel.view.worker.wait(60)
    assert "Stopped" in status(panel)


def test_while_it_trains_picture_progress_and_status_move(panel, monkeypatch):
    monkeypatch.setattr(live_view, "FIRST_FRAME", 0.0)
    monkeypatch.setattr(live_view, "NEXT_FRAME", 0.0)
    monkeypatch.setattr(live_view, "SHARE", float("inf"))
    seen = []
    real = live_view.Frames.draw

    def draw(self, recorder):
        real(self, recorder)
        seen.append((panel.view.progress.value, status(panel), live(panel)))

    monkeypatch.setattr(live_view.Frames, "draw", draw)
    panel.respond(lr=0.02, steps=50)
    assert [step for step, _, _ in seen] == list(range(1, 51))
    assert "step 7 of 50" in seen[6][1]
    assert len({picture for _, _, picture in seen}) > 40
    assert panel.view.progress.max == 50


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"precision": "half", "loss_scale": "dynamic"}, "needs float32 weights"), ({"device": "cuda"}, "not on this")],
)
def test_a_recipe_that_is_refused_shows_the_reason(panel, changes, words):
    panel.turn(panel.setting.but(**changes))
    panel.start()
    assert panel.view.worker.wait(60)
    assert words in status(panel)
    assert panel.view.progress.bar_style == "danger"
    assert panel.respond(precision="fp32", loss_scale=None, device="cpu").run  # and the panel lives on


def test_a_pasted_state_moves_the_controls_and_a_bad_one_says_why(panel):
    panel.paste.value = TINY + ", lr=0.03"
    assert panel.view.worker.wait(60)
    assert panel.knobs["lr"].value == 0.03
    panel.paste.value = TINY + ", lr=fast"
    assert "expected a number" in status(panel)
    panel.paste.value = "zero_grad_missing"
    assert "labkit.knobs(" in status(panel)
    assert panel.knobs["lr"].value == 0.03


def test_presets_treatments_and_data_sets_move_the_controls(monkeypatch):
    monkeypatch.setattr(KnobPanel, "start", lambda self: None)
    mode = FAILURES["learning_rate_too_high"]
    panel = knobs(mode)
    panel.presets.value = "healthy"
    assert panel.setting.recipe == mode.recipes()["healthy"]
    panel.presets.value = "cure"
    assert panel.setting.recipe == mode.recipes()["cured"]
    panel.treatment.value = "aid"
    assert panel.setting.recipe == next(iter(mode.false_cures.values())).but(data="mnist")
    assert panel.presets.value == "cure"
    panel.presets.value = "sick"
    panel.turn(panel.setting.but(lr=0.5))
    assert panel.presets.value is None  # so that the same preset can be pressed again
    panel.presets.value = "sick"
    assert panel.setting.recipe == mode.recipes()["sick"]
    panel.dataset.value = "cifar10"
    assert panel.setting.recipe == mode.recipes(dataset="cifar10")["sick"]
    panel.close()


@pytest.mark.parametrize("name", FAILURES)
def test_every_mode_has_a_panel(name, monkeypatch):
    monkeypatch.setattr(KnobPanel, "start", lambda self: None)
    panel = knobs(name)
    assert panel.setting.recipe == FAILURES[name].recipes()["sick"]
    assert panel.own
    panel.close()


def test_a_plain_recipe_has_one_too(monkeypatch):
    small_twins(monkeypatch)
    panel = knobs(tiny(evaluate_every=3))
    assert panel.view.worker.wait(60)
    assert "6 steps" in status(panel)
    panel.close()


def test_an_error_in_a_step_is_shown_as_the_failure_it_is(monkeypatch):
    small_twins(monkeypatch)
    panel = knobs("in_place_edit/sick: samples=256, steps=10, evaluate_every=5")
    assert panel.view.worker.wait(60)
    assert "error" in status(panel)
    assert FAILURES["in_place_edit"].title in panel.view.verdict.value
    panel.close()


def test_ten_panels_leave_no_threads_and_no_widgets(monkeypatch):
    small_twins(monkeypatch)
    registry = ipywidgets.widgets.widget._instances
    knobs(TINY).close()
    threads, widgets = threading.active_count(), len(registry)
    for _ in range(10):
        panel = knobs(TINY)
        assert panel.view.worker.wait(60)
        panel.close()
    del panel
    gc.collect()
    assert threading.active_count() == threads
    assert len(registry) <= widgets


def test_memory_keeps_the_runs_used_last(monkeypatch):
    monkeypatch.setattr(run_store.SHARED, "most", 2)
    recipes = [tiny(seed=seed) for seed in range(3)]
    runs = [run_store.in_memory.run_of(recipe) for recipe in recipes[:2]]
    assert run_store.in_memory.get(recipes[0]) is runs[0]
    run_store.in_memory.run_of(recipes[2])
    assert run_store.in_memory.get(recipes[1]) is None
    assert run_store.in_memory.get(recipes[0]) is runs[0]


def test_a_live_line_that_leaves_its_axis_makes_room(short_run):
    import dataclasses

    picture = Picture(panes_for("update_ratio"))
    picture.begin({"healthy": short_run}, 40)
    loss_axis = picture.live.axes[0]
    before = loss_axis.get_ylim()
    picture.grow(short_run)
    assert loss_axis.get_ylim() == before
    wild = dataclasses.replace(short_run, traces=short_run.traces | {"loss": short_run["loss"] * 1e6})
    picture.grow(wild)
    assert loss_axis.get_ylim()[1] >= wild["loss"].max()
    picture.begin({"healthy": short_run}, 40)  # the next run starts on the old axis again
    assert loss_axis.get_ylim() == before


def test_a_pane_whose_instrument_is_missing_says_so(short_run):
    picture = Picture(panes_for("attention_map"))
    picture.whole({"healthy": short_run, "your run": short_run})
    texts = [text.get_text() for text in picture.finished.axes[3].texts]
    assert any("attention_map" in text for text in texts)
